// What a span does while somebody listens.
#include "span.h"

#include "engine.h"

namespace dipu {

std::atomic<bool> g_spans_on{false};

struct SpanRecord {};

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

void Span::begin(const Operator&, int, const char*) {}
void Span::begin(const DipuCopy&) {}
void Span::end() {}
void Span::cancel() {}

}  // namespace dipu
