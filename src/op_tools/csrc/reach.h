// Tensors whose memory the host reads without a copy, and how a place in it is known again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace op_tools {

// Where a tensor's values lie: all views of the same dense values are one place.
struct Place {
  const void* storage;
  int64_t offset;
  int64_t count;
  int type;
  uint64_t gaps;  // a hash of shape and strides; 0: it is dense

  bool operator==(const Place& other) const {
    return storage == other.storage && offset == other.offset && count == other.count && type == other.type &&
        gaps == other.gaps;
  }
};

struct PlaceHash {
  size_t operator()(const Place& place) const;
};

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }  // as all are that are contiguous

// Null: it has none. As torch's own `has_storage` and `storage` tell, without a call of each.
inline c10::StorageImpl* memory_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(); }

inline bool is_plain(const at::Tensor& tensor) {  // its values are what lies in its memory
  using c10::DispatchKey;
  constexpr auto odd = c10::DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor, DispatchKey::Python,
                                            DispatchKey::Quantized, DispatchKey::NestedTensor});
  return !tensor.key_set().has_any(odd) && tensor.layout() == at::kStrided && memory_of(tensor) != nullptr && !tensor.is_meta();
}

inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

// Puts a dimension among others, the outermost first; they are few: nothing is sorted later, which would ask for memory.
template <typename Dims>
void put_in_order(Dims& dims, int64_t stride, int64_t size) {
  const auto at = std::upper_bound(dims.begin(), dims.end(), stride, [](int64_t own, const auto& other) { return own > other.first; });
  dims.insert(at, {stride, size});
}

uint64_t gaps_of(const at::Tensor& tensor);  // of one that is not dense

inline std::optional<Place> place_of(const at::Tensor& tensor) {  // none: nothing is there, or nothing counts its writes
  if (tensor.numel() == 0 || tensor.is_inference()) return std::nullopt;
  return Place{memory_of(tensor), tensor.storage_offset(), tensor.numel(), static_cast<int>(tensor.scalar_type()),
               is_dense(tensor) ? 0 : gaps_of(tensor)};
}

std::string sample_of(const at::Tensor& tensor, const uint8_t* data);  // a few elements from its middle

// Its values in the order of memory, each once: how many, and how often each is seen.
struct Layout {
  explicit Layout(const at::Tensor& tensor);
  bool together() const { return dims.empty(); }  // they lie one after the other
  void gather(const uint8_t* from, uint8_t* to) const;

  size_t count = 1, width, run = 1;  // values, bytes of each, values that lie together
  int64_t times = 1;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
};

class Reach {
 public:
  // window(type, index) -> (device, host, bytes) or None
  explicit Reach(py::function window) : window_(std::move(window)) {}
  ~Reach();

  bool reaches(const at::Tensor& tensor) { return is_plain(tensor) && sees(tensor); }
  bool sees(const at::Tensor& tensor);               // a plain one
  bool sees_any(c10::Device device) { return device.is_cpu() || window_of(device).bytes > 0; }
  const uint8_t* address(const at::Tensor& tensor);  // where the host reads it, once the device is done with it

 private:
  struct Window {
    c10::Device of{c10::DeviceType::CPU};
    const char *device = nullptr, *host = nullptr;
    size_t bytes = 0;
  };
  const Window& window_of(c10::Device device);

  py::function window_;
  std::map<std::pair<int, int>, Window> windows_;
  std::atomic<const Window*> last_{nullptr};  // the one that was asked for last
  std::mutex lock_;
};

struct AddressHash {
  using hash_policy = ska::power_of_two_hash_policy;
  size_t operator()(const void* address) const { return (reinterpret_cast<uint64_t>(address) * 0x9E3779B97F4A7C15ull) >> 24; }
};

// What was made of tensors, for as long as their memory holds the same values; see op_tools/snapshot.py.
// Memory is held weakly, so that no other has its address meanwhile.
template <typename T>
class Unchanged {
 public:
  Unchanged(bool sampled, Reach& reach) : sampled_(sampled), reach_(reach) {}

  void trust_nobody() { sampled_ = true; }  // what was kept without a sample is like none

  std::optional<T> find(const at::Tensor& tensor) {
    std::optional<T> found;
    if (const auto place = place_of(tensor)) use(*place, tensor, [&](const T& made) { return found = made, true; });
    return found;
  }

  // Calls `take` with what was made of a tensor, if anything was; whether it could use it. Not to come back to this object.
  template <typename Take>
  bool use(const Place& place, const at::Tensor& tensor, Take take) {
    std::unique_lock lock(lock_);
    const auto memory = known_.find(place.storage);
    if (memory == known_.end()) return false;
    const Known* found = memory->second->find(place);
    if (found == nullptr || found->version != version_of(tensor)) return false;
    if (!sampled_) return take(found->made);
    const Known known = *found;
    lock.unlock();
    if (known.sample != sample_of(tensor, reach_.address(tensor))) return false;
    return take(known.made);
  }

  void keep(const at::Tensor& tensor, T made) {
    if (const auto place = place_of(tensor)) keep(*place, tensor, std::move(made));
  }

  void keep(const Place& place, const at::Tensor& tensor, T made) {
    Known known{place, version_of(tensor), sampled_ ? sample_of(tensor, reach_.address(tensor)) : std::string(), std::move(made)};
    std::lock_guard lock(lock_);
    any_.store(true, std::memory_order_release);
    memory_of(place, tensor).keep(std::move(known));
  }

  // A call has written it: all that was made of its memory is, whatever the view; autograd does not
  // count each write.
  void forget(const at::Tensor& tensor) {
    if (!any_.load(std::memory_order_acquire) || !is_plain(tensor)) return;
    std::lock_guard lock(lock_);
    const auto memory = known_.find(tensor.storage().unsafeGetStorageImpl());
    if (memory != known_.end()) memory->second->clear();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  struct Known {
    Place place;
    uint32_t version;
    std::string sample;
    T made;
  };

  // Of one storage. Few views are looked through, more have an index.
  struct Memory {
    Weak storage{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::SmallVector<Known, 1> views;
    std::unordered_map<Place, size_t, PlaceHash> index;

    void clear() { views.clear(), index.clear(); }

    const Known* find(const Place& place) const {
      if (views.size() > kFew) {
        const auto found = index.find(place);
        return found == index.end() ? nullptr : &views[found->second];
      }
      for (const Known& known : views)
        if (known.place == place) return &known;
      return nullptr;
    }

    void keep(Known known) {
      if (const Known* found = find(known.place)) {
        *const_cast<Known*>(found) = std::move(known);
        return;
      }
      views.push_back(std::move(known));
      if (views.size() <= kFew) return;
      for (size_t at = index.size(); at < views.size(); at++) index.emplace(views[at].place, at);
    }
  };

  Memory& memory_of(const Place& place, const at::Tensor& tensor) {
    if (known_.size() > sweep_at_) sweep();
    auto found = known_.find(place.storage);
    if (found == known_.end()) found = known_.emplace(place.storage, fresh(tensor)).first;
    return *found->second;
  }

  std::unique_ptr<Memory> fresh(const at::Tensor& tensor) {
    std::unique_ptr<Memory> made;
    if (spare_.empty()) made = std::make_unique<Memory>();
    else made = std::move(spare_.back()), spare_.pop_back();
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    c10::raw::weak_intrusive_ptr::incref(storage);
    made->storage = Weak::reclaim(storage);
    return made;
  }

  void sweep() {
    for (auto at = known_.begin(); at != known_.end();) {
      if (at->second->storage.use_count() > 0) {
        ++at;
        continue;
      }
      at->second->clear(), at->second->storage.reset();
      if (spare_.size() < kSweep) spare_.push_back(std::move(at->second));
      at = known_.erase(at);
    }
    sweep_at_ = known_.size() + kSweep;
  }

  static constexpr size_t kSweep = 1024;  // so many pieces of memory later, those that were freed are forgotten
  static constexpr size_t kFew = 16;
  std::atomic<bool> sampled_;
  Reach& reach_;
  ska::flat_hash_map<const void*, std::unique_ptr<Memory>, AddressHash> known_;
  std::vector<std::unique_ptr<Memory>> spare_;  // used again
  size_t sweep_at_ = kSweep;
  std::atomic<bool> any_{false};
  std::mutex lock_;
};

}  // namespace op_tools
