// Values that a device copies on its own: for how long a copy stands for its memory.
#include "sent.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "unseen.h"

namespace op_tools {
namespace {

constexpr size_t kForeseen = 512;  // tensors that are looked at together
constexpr size_t kNext = 4096;     // tensors after which they are those of the step before, where none is counted
constexpr size_t kSweep = 4096, kHead = 64;  // the latter of op_tools/archive.py

struct KindLess {
  using Kind = std::pair<c10::Device, c10::ScalarType>;
  static auto order(const Kind& kind) { return std::make_tuple(kind.first.type(), kind.first.index(), kind.second); }
  bool operator()(const Kind& a, const Kind& b) const { return order(a) < order(b); }
};

}  // namespace

// What is known of a tensor's memory, unless it was written since.
std::shared_ptr<Sent::Entry> Sent::valid(const at::Tensor& tensor) {
  const auto place = place_of(tensor);
  if (!place) return nullptr;
  const auto found = entries_.find(*place);
  if (found == entries_.end()) return nullptr;
  const auto& entry = found->second;
  if (entry->version != version_of(tensor) || entry->storage.expired()) return nullptr;
  const auto written = written_.find(place->storage);
  return written != written_.end() && written->second > entry->sent ? nullptr : entry;
}

bool Sent::fresh(const Entry& entry, int64_t step) const {
  return entry.turn == turn_ || (entry.step == step && number_ - entry.number < trusted_);
}

void Sent::look(const std::vector<const at::Tensor*>& tensors, int64_t step) {
  Entries stale;
  {
    std::lock_guard lock(lock_);
    turn_++;
    if (!sampled_) return;
    turn_over(step);
    for (const at::Tensor* tensor : tensors) {
      auto entry = valid(*tensor);
      if (entry && entry->place.gaps == 0 && !fresh(*entry, step)) stale.push_back(std::move(entry));
    }
    if (stale.empty()) return;
    if (trusted_ > 0) stale = foreseen(stale, step);
  }
  compare(stale, step);
}

// What was sent or looked at in the step before is looked at together, if any of it is.
void Sent::turn_over(int64_t step) {
  if (step == recent_step_ && recent_.size() < kNext) return;
  previous_ = std::exchange(recent_, {});
  recent_step_ = step;
}

// They, and of the same device those of the step before.
Sent::Entries Sent::foreseen(const Entries& wanted, int64_t step) {
  Entries all = wanted;
  const Entry& first = *wanted[0];
  Entries left;
  for (auto& entry : previous_) {
    if (entry->storage.expired() || fresh(*entry, step) || std::find(wanted.begin(), wanted.end(), entry) != wanted.end()) continue;
    if (all.size() < kForeseen && entry->device == first.device) all.push_back(std::move(entry));
    else left.push_back(std::move(entry));
  }
  previous_.swap(left);
  return all;
}

void Sent::compare(const Entries& entries, int64_t step) {
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, int>, Entries> kinds;
  for (const auto& entry : entries) kinds[{entry->device.type(), entry->device.index(), entry->place.type}].push_back(entry);
  const py::gil_scoped_release free;
  const Unseen unseen;
  for (const auto& [kind, some] : kinds)
    compare_some(some, some[0]->device, static_cast<c10::ScalarType>(std::get<2>(kind)), step);
}

// The same by torch's own; null: a device that cannot, and all of them are sent again.
static const char* by_torch(const std::vector<Copies::Part>& parts, c10::Device device, c10::ScalarType type, at::Tensor& found) {
  const c10::DispatchKeySet keys = keys_of(device, type);
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  std::vector<at::Tensor> made;
  for (const auto& part : parts)
    made.push_back(over(part.storage, keys, c10::scalarTypeToTypeMeta(type), part.start / width, {part.bytes / width}, {1}));
  try {
    found = at::cat(made).to(at::kCPU);  // it waits for the stream, and so for all that was sent in it
  } catch (const c10::Error&) {
    return nullptr;
  }
  return static_cast<const char*>(found.const_data_ptr());
}

void Sent::compare_some(const Entries& entries, c10::Device device, c10::ScalarType type, int64_t step) {
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  std::vector<Copies::Part> parts, copies;
  std::vector<bool> copied;  // it is compared with the device's own copy
  Entries asked;
  {
    std::lock_guard lock(lock_);
    for (const auto& entry : entries) {
      const auto storage = entry->storage.lock();
      if (!storage) continue;
      const int64_t taken = few_of(entry->place), start = entry->place.offset + (entry->place.count - taken) / 2;
      parts.push_back({c10::Storage(storage), start * width, taken * width});
      asked.push_back(entry);
      copied.push_back(entry->near.defined());
      if (copied.back()) copies.push_back({entry->near.storage(), entry->near_at, taken * width});
    }
  }
  if (parts.empty()) return;
  parts.insert(parts.end(), copies.begin(), copies.end());
  const c10::Stream here = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  at::Tensor found;
  const char* bytes = copies_.read(parts, here);
  if (bytes == nullptr) bytes = by_torch(parts, device, type, found);
  const char* copy = bytes;
  for (const auto& entry : asked)
    if (copy != nullptr) copy += few_of(entry->place) * width;
  std::lock_guard lock(lock_);
  for (size_t at = 0; at < asked.size(); at++) {
    const auto& entry = asked[at];
    const size_t size = static_cast<size_t>(few_of(entry->place) * width);
    const bool there = !entry->stream || *entry->stream == here;
    const char* few = entry->few;
    if (copied[at]) few = there ? copy : nullptr;
    else if (few == nullptr) few = entry->kept.empty() ? nullptr : entry->kept.data();
    else if (!there) few = nullptr;
    if (few != nullptr && bytes != nullptr && std::memcmp(few, bytes, size) == 0) {
      entry->number = number_, entry->step = step, entry->turn = turn_;
      recent_.push_back(entry);
    } else if (const auto known = entries_.find(entry->place); known != entries_.end() && known->second == entry) {
      entries_.erase(known);  // it is to be sent again
    }
    if (bytes != nullptr) bytes += size, copy += copied[at] ? size : 0;
  }
}

std::optional<At> Sent::find(const at::Tensor& tensor, int64_t step) {
  std::lock_guard lock(lock_);
  const auto entry = valid(tensor);
  if (!entry || (sampled_ && !fresh(*entry, step))) return std::nullopt;
  number_++;
  return entry->at;
}

bool Sent::send(const at::Tensor& tensor, const Memory& to, size_t at, uint64_t end, int64_t step) {
  const bool near = to.near.defined() && to.near.device() == tensor.device();
  const at::Tensor& memory = near ? to.near : to.host;
  const Layout layout(tensor);
  Late late{end, to.address, layout.count * layout.width};
  late.at = at;
  const size_t start = (near ? at : static_cast<size_t>(to.address - static_cast<char*>(to.host.data_ptr()))) + kHead;
  if (to.locked) late.stream = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
  if (near) late.near = to.near;
  const bool dense = layout.together() && layout.times == 1 && is_dense(tensor);
  bool put_off = dense && late.stream && (near || !to.near.defined()) && copies_.takes(*late.stream);
  if (put_off) {
    if (copies_.full(*late.stream)) give();
    copies_.add(tensor, static_cast<char*>(memory.data_ptr()) + start, *late.stream);
  } else {
    put_off = near && dense;
    copy(tensor, layout, memory, start, to.locked);
  }
  std::lock_guard lock(lock_);
  keep(tensor, late, step);
  if (put_off) owed_.push_back(late.entry);
  late_.push_back(std::move(late));
  return near;
}

// By torch's own; of what lies together in a device's memory, with others.
void Sent::copy(const at::Tensor& tensor, const Layout& layout, const at::Tensor& memory, size_t start, bool locked) {
  const Unseen unseen;
  const auto width = static_cast<int64_t>(tensor.element_size());
  const int64_t offset = (memory.storage_offset() + static_cast<int64_t>(start)) / width;
  const c10::DispatchKeySet keys = keys_of(memory.device(), tensor.scalar_type());
  if (layout.together() && layout.times == 1 && is_dense(tensor)) {
    auto copy = over(memory.storage(), keys, tensor.dtype(), offset, tensor.sizes(), tensor.strides());
    if (memory.device() == tensor.device()) from_.push_back(tensor), to_.push_back(std::move(copy));
    else copy.copy_(tensor, locked);
    return;
  }
  std::vector<int64_t> sizes, strides, dense;
  for (const auto& [stride, size] : layout.dims) sizes.push_back(size), strides.push_back(stride);
  sizes.push_back(static_cast<int64_t>(layout.run)), strides.push_back(1);
  dense.assign(sizes.size(), 1);
  for (size_t dim = sizes.size() - 1; dim > 0; dim--) dense[dim - 1] = dense[dim] * sizes[dim];
  const at::Tensor ordered = at::as_strided(tensor, sizes, strides, tensor.storage_offset());
  over(memory.storage(), keys, tensor.dtype(), offset, sizes, dense).copy_(ordered, locked);
}

bool Sent::launches(const at::Tensor& tensor) {
  return copies_.takes(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

void Sent::give() {
  if (owed_.empty()) return;
  std::exception_ptr error;
  try {
    copies_.give();
    give_copies();
  } catch (...) {  // the device has failed: what is behind their heads is nobody's
    error = std::current_exception();
    std::lock_guard lock(lock_);
    for (const auto& entry : owed_)
      if (entry) entries_.erase(entry->place);
  }
  copies_.drop();
  from_.clear(), to_.clear(), owed_.clear();
  if (error) std::rethrow_exception(error);
}

void Sent::give_copies() {
  if (from_.empty()) return;
  const Unseen unseen;
  if (from_.size() == 1) {
    to_[0].copy_(from_[0], true);
    return;
  }
  std::map<std::pair<c10::Device, c10::ScalarType>, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>, KindLess> kinds;
  for (size_t at = 0; at < from_.size(); at++) {
    auto& [from, to] = kinds[{from_[at].device(), from_[at].scalar_type()}];
    from.push_back(std::move(from_[at])), to.push_back(std::move(to_[at]));
  }
  for (const auto& [kind, lists] : kinds) at::_foreach_copy_(lists.second, lists.first, true);
}

void Sent::keep(const at::Tensor& tensor, Late& late, int64_t step) {
  const auto place = place_of(tensor);
  if (!place) return;
  if (entries_.size() > sweep_at_) sweep();
  number_++;
  auto storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl());
  late.entry = std::make_shared<Entry>(Entry{Weak(storage), *place, version_of(tensor),
                                             {static_cast<int64_t>(late.end + kHead), static_cast<int64_t>(late.size)},
                                             number_, number_, turn_, step, tensor.device(), late.stream});
  if (sampled_ && place->gaps == 0) {
    const int64_t before = (place->count - few_of(*place)) / 2;
    late.entry->few = late.head + kHead + before * static_cast<int64_t>(tensor.element_size());
    if (late.near.defined()) {
      late.entry->near = late.near;
      late.entry->near_at = late.near.storage_offset() + static_cast<int64_t>(late.at) + (late.entry->few - late.head);
    }
  }
  entries_[*place] = late.entry;
  if (sampled_ && trusted_ > 0 && place->gaps == 0) recent_.push_back(late.entry);
}

void Sent::sweep() {
  std::erase_if(entries_, [](const auto& one) { return one.second->storage.expired(); });
  std::unordered_set<const void*> live;
  for (const auto& [place, entry] : entries_) live.insert(place.storage);
  std::erase_if(written_, [&](const auto& one) { return !live.contains(one.first); });
  sweep_at_ = entries_.size() + kSweep;
}

void Sent::forget(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_nested() || !tensor.has_storage()) return;
  std::lock_guard lock(lock_);
  if (entries_.empty()) return;
  written_[tensor.storage().unsafeGetStorageImpl()] = ++number_;
}

void Sent::forget_all() {
  std::lock_guard lock(lock_);
  entries_.clear();
  written_.clear();
}

void Sent::trust_nobody() {
  sampled_ = true, trusted_ = 0;
  forget_all();
}

}  // namespace op_tools
