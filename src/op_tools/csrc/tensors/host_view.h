/* SPDX-License-Identifier: Apache-2.0 */
// How a tensor's values lie in memory, and tensors whose memory the host reads without a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <vector>

namespace op_tools {

// Null: the tensor has no storage.
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Whether the values of a tensor are what its memory holds.
inline bool is_plain(const at::Tensor& tensor) {
  using c10::DispatchKey;
  constexpr auto odd =
      c10::DispatchKeySet({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor,
                           DispatchKey::Python, DispatchKey::Quantized, DispatchKey::NestedTensor});
  return !tensor.key_set().has_any(odd) && tensor.layout() == at::kStrided &&
         storage_of(tensor) != nullptr && !tensor.is_meta();
}

inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

// The values of a tensor in the order of memory, each once. Dimensions of one element and of stride
// 0 are left out, and adjacent ones are merged.
struct Layout {
  explicit Layout(const at::Tensor& tensor);
  bool is_contiguous() const { return dims.empty(); }
  void gather(const uint8_t* from, uint8_t* to) const;

  size_t count = 1, width, run = 1;  // values, bytes of each, values that lie side by side
  int64_t times = 1;                 // how often each value occurs in the tensor
  c10::SmallVector<std::pair<int64_t, int64_t>, 4>
      dims;  // stride and size, the outermost first, without the runs
};

// Device memory that is mapped into the host's address space.
class HostView {
 public:
  // window(device type, index) -> (device address, host address, bytes) or None
  explicit HostView(py::function window) : window_(std::move(window)) {}
  ~HostView();

  bool reaches(const at::Tensor& tensor);  // a plain tensor
  const uint8_t* address(
      const at::Tensor& tensor);  // on the host, after the device has finished its work

 private:
  struct Window {
    const char *device = nullptr, *host = nullptr;
    size_t bytes = 0;
  };
  const Window& window_of(c10::Device device);

  py::function window_;
  std::map<std::pair<int, int>, Window> windows_;
  std::mutex lock_;
};

}  // namespace op_tools
