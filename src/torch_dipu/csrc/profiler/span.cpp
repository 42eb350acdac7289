// SPDX-License-Identifier: Apache-2.0
// The work of a span while a listener is registered.
#include "profiler/span.h"

#include <algorithm>
#include <cctype>

#include "engine/engine.h"

namespace dipu {

std::atomic<uint8_t> g_listeners{0};
static thread_local SpanRecord tls_span;
static thread_local bool tls_inside = false;

void listen(Listener who, bool on) {
  if (on) g_listeners.fetch_or(who);
  else g_listeners.fetch_and(static_cast<uint8_t>(~who));
}

SpanRecord* current_span() {
  return tls_inside ? &tls_span : nullptr;
}

// "add_.Tensor" -> "dipu_add__tensor"
static std::string device_name(const Operator& op) {
  std::string text = "dipu_" + op.name;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return c == '.' ? '_' : std::tolower(c); });
  return text;
}

// Formats a copy as CUDA's profiler does: "Memcpy HtoD (Pageable -> Device)"
static std::string copy_name(const DipuCopy& copy) {
  const auto letter = [](int device) { return device == DIPU_HOST ? "H" : "D"; };
  const auto kind = [](int device, const void* address) {
    return device != DIPU_HOST ? "Device" : is_pinned(address) ? "Pinned" : "Pageable";
  };
  return std::string("Memcpy ") + letter(copy.src_device) + "to" + letter(copy.dst_device) + " (" +
      kind(copy.src_device, copy.src) + " -> " + kind(copy.dst_device, copy.dst) + ")";
}

// "dicl_all_reduce_sum"
static std::string collective_name(const CollectiveInfo& collective) {
  return "dicl_" + collective.name + (collective.reduction.empty() ? "" : "_" + collective.reduction);
}

std::string SpanRecord::name() const {
  if (collective != nullptr) return collective_name(*collective);
  if (op == nullptr) return copy_name(copy);
  return kernel != nullptr ? kernel : device_name(*op);
}
std::string SpanRecord::launch() const {
  if (collective != nullptr) return "LaunchKernel_" + collective_name(*collective);
  if (op == nullptr) return copy.blocking != 0 ? "Memcpy" : "MemcpyAsync";
  return "LaunchKernel_" + device_name(*op);
}
std::string SpanRecord::what() const {
  if (collective != nullptr) return collective_name(*collective);
  if (op == nullptr) return copy_name(copy);
  return kernel != nullptr ? op->name + " (" + kernel + ")" : op->name;
}

int Span::device_of_arguments(const Operator& op, const torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  for (const auto& a : op.looked_at) {
    const auto& value = stack[base + a.index];
    if (value.isTensor() && on_device(value.toTensor())) return value.toTensor().device().index();
    if (!value.isTensorList()) continue;
    for (const at::Tensor& t : value.toTensorVector()) if (on_device(t)) return t.device().index();
  }
  return current_device();
}

void Span::begin(const Operator& op, int device, const char* kernel) {
  if (device == DIPU_HOST) return;
  if (tls_inside) {  // inside a fault's hook: its work belongs to the span
    if (kernel != nullptr && tls_span.op == &op) tls_span.kernel = kernel;
    return;
  }
  SpanRecord record;
  record.op = &op;
  record.kernel = kernel;
  record.device = device;
  open(record);
}

void Span::begin(const DipuCopy& copy) {
  if (tls_inside || copy.stream_device == DIPU_HOST) return;
  SpanRecord record;
  record.copy = copy;
  record.device = copy.stream_device;
  open(record);
}

void Span::begin(const CollectiveInfo& collective) {
  if (tls_inside) return;
  SpanRecord record;
  record.collective = &collective;
  record.device = collective.device;
  record.stream = collective.stream;
  open(record);
}

void Span::open(SpanRecord record) {
  if (record.collective == nullptr) record.stream = current_stream(record.device);
  record.listeners = g_listeners.load();
  tls_span = record;
  tls_inside = true;
  record_ = &tls_span;
  if (record_->listeners & kStrictCheck) check_begin(*record_);
  if (record_->listeners & kProfiler) profile_begin(*record_);
}

void Span::end() {
  if (record_->listeners & kProfiler) profile_end(*record_);
  if (record_->listeners & kStrictCheck) check_end(*record_);
  tls_inside = false;
}

void Span::cancel() {
  if (record_ == nullptr) return;
  if (record_->listeners & kProfiler) profile_cancel(*record_);
  tls_inside = false;
  record_ = nullptr;
}

}  // namespace dipu
