// SPDX-License-Identifier: Apache-2.0
// The streams that a graph captures, and the calls that a capture refuses.
#include "graphs/capture.h"

#include "engine/engine.h"

namespace dipu {

std::atomic<uint8_t> g_capturing{0};

namespace {
std::mutex g_mutex;  // of the next
std::array<CapturePtr, kMaxDevices>& captures() {
  static auto* all = new std::array<CapturePtr, kMaxDevices>();
  return *all;
}
CapturePtr capture_on(int device) {
  if (C10_LIKELY(g_capturing.load(std::memory_order_relaxed) == 0) || device < 0) return nullptr;
  std::lock_guard<std::mutex> lock(g_mutex);
  return captures()[device];
}

[[noreturn]] void refuse(const char* call) {
  TORCH_CHECK(
      false, "DIPU: ", call, " is not permitted while a graph captures the stream: a replay could not repeat it. ",
      "Hint: call it before or after the capture");
}
}  // namespace

void set_capture(int device, CapturePtr capture) {
  std::lock_guard<std::mutex> lock(g_mutex);
  captures()[device] = std::move(capture);
  bool any = false;
  for (const auto& other : captures()) any |= other != nullptr;
  g_capturing.store(any ? kCaptured : 0);
}

CapturePtr capture_of(int device, void* stream) {
  auto capture = capture_on(device);
  if (C10_LIKELY(capture == nullptr)) return nullptr;
  std::lock_guard<std::mutex> lock(capture->mutex);
  return capture->streams.count(stream) > 0 ? capture : nullptr;
}
CapturePtr capture_of_current(int device) {
  return C10_LIKELY(g_capturing.load(std::memory_order_relaxed) == 0) ? nullptr : capture_of(device, current_stream(device));
}
bool is_capturing(int device) {
  return capture_of_current(device) != nullptr;
}
CapturePtr recording(int device) {
  if (C10_LIKELY(g_capturing.load(std::memory_order_relaxed) == 0) || (tls_off & kCaptured) != 0) return nullptr;
  return records_host_calls() ? capture_of_current(device) : nullptr;
}
CapturePause::CapturePause() : before_(tls_off) {
  tls_off |= kCaptured;
}
CapturePause::~CapturePause() {
  tls_off = before_;
}

void save_generator(int device, const at::Generator& generator) {
  const auto capture = capture_of_current(device);
  if (C10_LIKELY(capture == nullptr)) return;
  std::lock_guard<std::mutex> lock(capture->mutex);
  for (const auto& [known, state] : capture->generators) if (known == generator) return;
  capture->generators.emplace_back(generator, generator_state(generator));
}

void refuse_in_capture(int device, void* stream, const char* call) {
  if (C10_UNLIKELY(g_capturing.load(std::memory_order_relaxed) != 0) && capture_of(device, stream) != nullptr) refuse(call);
}
void refuse_device_wide_in_capture(int device, const char* call) {
  const auto capture = capture_on(device);
  if (C10_LIKELY(capture == nullptr)) return;
  const bool everywhere = capture->mode == CaptureMode::Default || capture->mode == CaptureMode::Global;
  if (everywhere || capture->thread == std::this_thread::get_id()) refuse(call);
}

void note_captured_event(int device, void* stream, void* event) {
  const auto capture = capture_on(device);
  if (C10_LIKELY(capture == nullptr)) return;
  std::lock_guard<std::mutex> lock(capture->mutex);
  if (capture->streams.count(stream) > 0) capture->events.insert(event);
  else capture->events.erase(event);  // recorded anew, outside
}
bool join_by_event(int device, void* stream, void* event) {
  const auto capture = capture_on(device);
  if (C10_LIKELY(capture == nullptr)) return false;
  std::lock_guard<std::mutex> lock(capture->mutex);
  if (capture->events.count(event) == 0) return false;
  capture->streams.insert(stream);
  return true;
}
void refuse_captured_event(void* event, const char* call) {
  if (C10_LIKELY(g_capturing.load(std::memory_order_relaxed) == 0)) return;
  for (int i = 0; i < device_count(); i++) {
    const auto capture = capture_on(i);
    if (capture == nullptr) continue;
    std::lock_guard<std::mutex> lock(capture->mutex);
    if (capture->events.count(event) > 0) refuse(call);
  }
}

}  // namespace dipu
