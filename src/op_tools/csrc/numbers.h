// The numbers of what is waited for, by where it lies.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "reach.h"

namespace op_tools {

// What is known of memory, for one thread at a time: flat, since most of what it costs is to reach it. What was not asked for in a
// long time is forgotten, memory that lives among it: to look whether each does costs more than to reduce a few again.
class Numbers {
 public:
  struct View {
    int64_t offset = 0, count = 0;  // no values: it is none
    uint64_t gaps = 0;
    int64_t number = -1;
    uint32_t version = 0;
    int type = 0;

    bool is_at(const Place& place) const {
      return count == place.count && offset == place.offset && type == place.type && gaps == place.gaps;
    }
  };

  // Of one storage: a line of the cache. The view that was kept last is in it; few others are looked through, more have an index.
  struct alignas(64) Slot {
    c10::StorageImpl* storage = nullptr;
    int64_t waits = -1;  // the highest number of a piece of it
    View newest;

    const View* find(const Place& place) const { return newest.is_at(place) ? &newest : others == nullptr ? nullptr : others->find(place); }
    void keep(const Place& place, uint32_t version, int64_t number);
    void clear() { newest = View(), delete std::exchange(others, nullptr); }

   private:
    friend class Numbers;
    struct Others {
      std::vector<View> all;
      std::unordered_map<Place, size_t, PlaceHash> index;
      View* find(const Place& place);
      void keep(const void* storage, const View& view);
    };
    Others* others = nullptr;
  };
  static_assert(sizeof(Slot) == 64);

  // Held weakly, so that no other has its address meanwhile; else what is found is to be judged by its number.
  explicit Numbers(bool weakly) : weakly_(weakly) {}

  Slot* find(c10::StorageImpl* storage) {
    if (young_ == nullptr) return nullptr;
    Slot* found = young_->find(storage);
    return found != nullptr || old_ == nullptr ? found : found_among_old(storage);
  }
  Slot& of(c10::StorageImpl* storage) {  // until the next one is asked for
    Slot* found = young_ == nullptr ? nullptr : young_->find(storage);
    return found != nullptr ? *found : made(storage);
  }
  void expect(const void* storage) const {  // soon; any thread
    for (const auto& first : first_)
      if (const Slot* slot = first.load(std::memory_order_relaxed)) __builtin_prefetch(slot + Table::start(storage));
  }
  bool full() const { return young_ != nullptr && young_->used >= kFull; }  // to be turned over
  void turn();
  void drop(c10::StorageImpl* storage);  // it is given back

  static c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* storage) {
    c10::raw::weak_intrusive_ptr::incref(storage);
    return c10::weak_intrusive_ptr<c10::StorageImpl>::reclaim(storage);
  }

  // What was forgotten for good, to be given back by another thread.
  struct Table;
  using Forgotten = std::unique_ptr<Table>;
  Forgotten forgotten() { return std::move(forgotten_); }
  void again(Forgotten empty) { spare_ = std::move(empty); }  // memory that is used again

  static constexpr size_t kBits = 14, kRoom = size_t{1} << kBits, kFull = kRoom / 4;  // most are found, or not, at the first look

  struct Table {
    explicit Table(bool weakly) : weakly(weakly) {}
    ~Table() { clear(); }
    Table(const Table&) = delete;
    void clear();

    static size_t start(const void* storage) { return (reinterpret_cast<uint64_t>(storage) * 0x9E3779B97F4A7C15ull) >> (64 - kBits); }
    Slot* find(const void* storage) {
      for (size_t at = start(storage);; at = (at + 1) % kRoom) {
        if (slots[at].storage == storage) return &slots[at];
        if (slots[at].storage == nullptr) return nullptr;
      }
    }
    Slot& free_for(const void* storage);
    void leave(Slot& slot);

    const bool weakly;
    size_t used = 0;  // with those that were left
    std::array<Slot, kRoom> slots{};
  };

 private:
  Slot& made(c10::StorageImpl* storage);
  Slot* found_among_old(c10::StorageImpl* storage);

  const bool weakly_;
  std::unique_ptr<Table> young_, old_, forgotten_, spare_;
  std::atomic<const Slot*> first_[2]{};  // of the young, of the old
};

}  // namespace op_tools
