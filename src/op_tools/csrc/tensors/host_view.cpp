// SPDX-License-Identifier: Apache-2.0
#include "host_view.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

namespace op_tools {

Layout::Layout(const at::Tensor& tensor) : width(tensor.element_size()) {
  if (tensor.numel() == 0 || is_dense(tensor)) {
    count = run = static_cast<size_t>(tensor.numel());
    return;
  }
  for (int64_t dim = 0; dim < tensor.dim(); dim++) {
    const int64_t size = tensor.size(dim), stride = tensor.stride(dim);
    if (size == 1) continue;
    if (stride == 0) {
      times *= size;
      continue;
    }
    dims.emplace_back(stride, size);
    count *= static_cast<size_t>(size);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  while (!dims.empty() && dims.back().first == static_cast<int64_t>(run)) {
    run *= static_cast<size_t>(dims.back().second);
    dims.pop_back();
  }
}

void Layout::gather(const uint8_t* from, uint8_t* to) const {
  const size_t bytes = run * width;
  std::vector<int64_t> at(dims.size(), 0);
  while (true) {
    std::memcpy(to, from, bytes);
    to += bytes;
    size_t dim = dims.size();
    while (true) {
      if (dim-- == 0) return;
      from += dims[dim].first * static_cast<int64_t>(width);
      if (++at[dim] < dims[dim].second) break;
      from -= dims[dim].first * dims[dim].second * static_cast<int64_t>(width);
      at[dim] = 0;
    }
  }
}

HostView::~HostView() {
  py::gil_scoped_acquire gil;  // the last owner may be a call in another thread
  window_ = py::function();
}

bool HostView::reaches(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0) return true;
  const Window& window = window_of(tensor.device());
  if (window.bytes == 0) return false;
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  return own >= window.device && own < window.device + window.bytes;
}

const uint8_t* HostView::address(const at::Tensor& tensor) {
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  if (own == nullptr || tensor.is_cpu()) return reinterpret_cast<const uint8_t*>(own);
  const Window& window = window_of(tensor.device());
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.synchronizeStream(device.getStream(tensor.device()));
  return reinterpret_cast<const uint8_t*>(window.host + (own - window.device));
}

const HostView::Window& HostView::window_of(c10::Device device) {
  const std::pair<int, int> key(static_cast<int>(device.type()), device.index());
  {
    std::lock_guard lock(lock_);
    const auto found = windows_.find(key);
    if (found != windows_.end()) return found->second;
  }
  Window window;
  {  // without the lock: Python may wait for this thread
    py::gil_scoped_acquire gil;
    const py::object seen = window_(c10::DeviceTypeName(device.type(), true), device.index());
    if (!seen.is_none()) {
      const auto [base, host, bytes] = seen.cast<std::tuple<uintptr_t, uintptr_t, size_t>>();
      window = {reinterpret_cast<const char*>(base), reinterpret_cast<const char*>(host), bytes};
    }
  }
  std::lock_guard lock(lock_);
  return windows_.emplace(key, window).first->second;
}

}  // namespace op_tools
