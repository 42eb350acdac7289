/* SPDX-License-Identifier: Apache-2.0 */
// Which recorded call produced the values of a tensor, so that they are not read a second time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <mutex>
#include <optional>

#include "../call/call_view.h"
#include "../tensors/host_view.h"
#include "call_log.h"

namespace op_tools {

// By storage. A storage is held weakly, so that no other storage gets its address. The record says
// where values came from; it does not claim that nothing has written the memory since. A change of
// the version counter invalidates the entry.
class Producers {
 public:
  void add(const at::Tensor& tensor, int64_t call, Reference::List list, uint32_t place) {
    c10::StorageImpl* storage = storage_of(tensor);
    if (storage == nullptr || tensor.numel() == 0 || tensor.is_inference()) return;
    std::lock_guard lock(lock_);
    if (entries_.size() > sweep_at_) sweep();
    auto& entry = entries_[storage];
    if (!entry.storage.has_value()) {
      c10::raw::weak_intrusive_ptr::incref(storage);
      entry.storage = Weak::reclaim(storage);
    }
    entry.from = {call, place, list, false};
    entry.version = CallView::version_of(tensor);
    entry.span = Span(tensor);
    entry.count = tensor.numel(), entry.type = tensor.scalar_type(), entry.dense = is_dense(tensor);
  }

  std::optional<Reference> find(const at::Tensor& tensor) {
    c10::StorageImpl* storage = storage_of(tensor);
    if (storage == nullptr || tensor.numel() == 0 || tensor.is_inference()) return std::nullopt;
    std::lock_guard lock(lock_);
    const auto found = entries_.find(storage);
    if (found == entries_.end() || found->second.version != CallView::version_of(tensor))
      return std::nullopt;
    const Entry& entry = found->second;
    const Span span(tensor);
    if (span.first < entry.span.first || span.last > entry.span.last) return std::nullopt;
    // all dense tensors of the same elements have the same statistics, whatever their shape
    const bool same = entry.dense && is_dense(tensor) && entry.span.first == span.first &&
                      entry.count == tensor.numel() && entry.type == tensor.scalar_type();
    Reference made = entry.from;
    made.is_view = !same;
    return made;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  // The bytes of a storage that a tensor lies in.
  struct Span {
    int64_t first = 0, last = 0;
    Span() = default;
    explicit Span(const at::Tensor& tensor) {
      int64_t elements = 1;
      for (int64_t dim = 0; dim < tensor.dim(); dim++)
        elements += (tensor.size(dim) - 1) * tensor.stride(dim);
      first = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
      last = first + elements * static_cast<int64_t>(tensor.element_size());
    }
  };
  struct Entry {
    std::optional<Weak> storage;
    Reference from;
    uint32_t version = 0;
    Span span;
    int64_t count = 0;
    at::ScalarType type = at::kFloat;
    bool dense = false;
  };

  void sweep() {
    for (auto at = entries_.begin(); at != entries_.end();)
      at = at->second.storage->use_count() > 0 ? std::next(at) : entries_.erase(at);
    sweep_at_ = 2 * entries_.size() + kSweep;
  }

  static constexpr size_t kSweep = 1024;
  ska::flat_hash_map<const c10::StorageImpl*, Entry> entries_;
  size_t sweep_at_ = kSweep;
  std::mutex lock_;
};

}  // namespace op_tools
