// The numbers of what is waited for, by where it lies.
#pragma once

#include <memory>
#include <unordered_map>

#include "reach.h"

namespace op_tools {

// As `Unchanged`, for one thread at a time. What was not asked for in a long time is forgotten, memory that lives among it: to
// look whether each does costs more than to reduce a few again.
class Numbers {
 public:
  // That of a tensor, if `holds` says that it still does, or what `make` gives it.
  template <typename Holds, typename Make>
  int64_t found_or(const Place& place, const at::Tensor& tensor, Holds holds, Make make) {
    const uint32_t version = version_of(tensor);
    Memory& memory = memory_of(place.storage, tensor);
    const View* found = memory.find(place);
    if (found != nullptr && found->version == version && holds(found->number)) return found->number;
    const int64_t number = make();
    memory.keep({place, version, number});
    return number;
  }

  // A call has written it: all that was known of its memory is, whatever the view.
  void forget(const at::Tensor& tensor) {
    if (!is_plain(tensor)) return;
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    for (Map* map : {&young_, &old_})
      if (const auto found = map->find(storage); found != map->end()) found->second->clear();
  }

  // What was forgotten for good, to be given back by another thread.
  auto forgotten() { return std::exchange(forgotten_, {}); }

 private:
  struct View {
    Place place;
    uint32_t version;
    int64_t number;
  };

  // Of one storage, held weakly, so that no other has its address meanwhile. Few views are looked through, more have an index.
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    c10::SmallVector<View, 1> views = {};
    std::unique_ptr<std::unordered_map<Place, size_t, PlaceHash>> index = nullptr;

    void clear() { views.clear(), index.reset(); }

    View* find(const Place& place) {
      if (index != nullptr) {
        const auto found = index->find(place);
        return found == index->end() ? nullptr : &views[found->second];
      }
      for (View& view : views)
        if (view.place == place) return &view;
      return nullptr;
    }

    void keep(const View& view) {
      if (View* found = find(view.place)) {
        *found = view;
        return;
      }
      views.push_back(view);
      if (views.size() <= kFew) return;
      if (index == nullptr) index = std::make_unique<std::unordered_map<Place, size_t, PlaceHash>>();
      for (size_t at = index->size(); at < views.size(); at++) index->emplace(views[at].place, at);
    }
  };
  using Map = ska::flat_hash_map<const void*, std::unique_ptr<Memory>, AddressHash>;

  Memory& memory_of(const void* address, const at::Tensor& tensor) {
    if (const auto found = young_.find(address); found != young_.end()) return *found->second;
    if (young_.size() >= kYoung) {
      if (forgotten_.empty()) forgotten_.push_back(std::move(old_));  // else nobody comes for it
      old_ = std::exchange(young_, {});
    }
    std::unique_ptr<Memory> made;
    if (const auto found = old_.find(address); found != old_.end()) made = std::move(found->second), old_.erase(found);
    else made.reset(new Memory{weak(tensor.storage().unsafeGetStorageImpl())});
    return *young_.emplace(address, std::move(made)).first->second;
  }

  static c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* storage) {
    c10::raw::weak_intrusive_ptr::incref(storage);
    return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
  }

  static constexpr size_t kFew = 16, kYoung = 4096;
  Map young_, old_;
  std::vector<Map> forgotten_;
};

}  // namespace op_tools
