// Tensors whose memory the host reads without a copy.
#include "reach.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "hash.h"

namespace op_tools {
namespace {

constexpr size_t kSampled = 32;  // elements that are looked at to see whether memory is as it was

}  // namespace

size_t PlaceHash::operator()(const Place& place) const {
  uint64_t mixed = reinterpret_cast<uint64_t>(place.storage) * kP1 ^ static_cast<uint64_t>(place.offset);
  mixed = (mixed ^ (mixed >> 29)) * kP2 ^ static_cast<uint64_t>(place.count);
  return avalanche(mixed ^ place.gaps ^ static_cast<uint64_t>(place.type));
}

// Of shape and strides in the order of memory: a view of the same values with its dimensions in another order is the same.
uint64_t gaps_of(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> dims;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t dim = 0; dim < sizes.size(); dim++)
    if (sizes[dim] != 1) put_in_order(dims, strides[dim], sizes[dim]);
  uint64_t mixed = kP3;
  for (const auto& [stride, size] : dims)
    for (const int64_t value : {stride, size}) mixed = avalanche(mixed + static_cast<uint64_t>(value) * kP1);
  return mixed | 1;
}

std::string sample_of(const at::Tensor& tensor, const uint8_t* data) {
  int64_t span = 1;
  for (int64_t dim = 0; dim < tensor.dim(); dim++) span += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto count = std::min<size_t>(static_cast<size_t>(span), kSampled);
  const size_t start = (static_cast<size_t>(span) - count) / 2, width = tensor.element_size();
  return {reinterpret_cast<const char*>(data) + start * width, count * width};
}

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
  std::stable_sort(dims.begin(), dims.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
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

Reach::~Reach() {
  py::gil_scoped_acquire gil;  // it may be a call in another thread that held it last
  window_ = py::function();
}

bool Reach::sees(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0) return true;
  const Window& window = window_of(tensor.device());
  if (window.bytes == 0) return false;
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  return own >= window.device && own < window.device + window.bytes;
}

const uint8_t* Reach::address(const at::Tensor& tensor) {
  const auto* own = static_cast<const char*>(tensor.const_data_ptr());
  if (own == nullptr || tensor.is_cpu()) return reinterpret_cast<const uint8_t*>(own);
  const Window& window = window_of(tensor.device());
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.synchronizeStream(device.getStream(tensor.device()));
  return reinterpret_cast<const uint8_t*>(window.host + (own - window.device));
}

const Reach::Window& Reach::window_of(c10::Device device) {
  const Window* last = last_.load(std::memory_order_acquire);
  if (last != nullptr && last->of == device) return *last;
  const std::pair<int, int> key(static_cast<int>(device.type()), device.index());
  std::unique_lock lock(lock_);
  auto found = windows_.find(key);
  if (found == windows_.end()) {
    lock.unlock();  // Python may wait for us
    Window window{device};
    {
      py::gil_scoped_acquire gil;
      const py::object seen = window_(c10::DeviceTypeName(device.type(), true), device.index());
      if (!seen.is_none()) {
        const auto [base, host, bytes] = seen.cast<std::tuple<uintptr_t, uintptr_t, size_t>>();
        window = {device, reinterpret_cast<const char*>(base), reinterpret_cast<const char*>(host), bytes};
      }
    }
    lock.lock();
    found = windows_.emplace(key, window).first;
  }
  last_.store(&found->second, std::memory_order_release);
  return found->second;
}

}  // namespace op_tools
