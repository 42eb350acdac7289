// SPDX-License-Identifier: Apache-2.0
// The device's work in torch.profiler: kernels and copies as Kineto activities, timed by the chip's
// own events, each linked to its launch on the host and the operator that launched it.
#define FMT_HEADER_ONLY 1
#ifndef USE_KINETO
#define USE_KINETO
#endif
#include <IActivityProfiler.h>
#include <c10/util/ApproximateClock.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <map>
#include <mutex>
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#define DIPU_HAS_PROFILER_REGISTRY
#endif

#include "profiler/span.h"

namespace dipu {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

struct Activity {
  std::string name, launch;
  int device;
  void* stream;
  size_t bytes;                    // of a copy or a collective
  bool copy;
  std::optional<CollectiveInfo> collective;
  int32_t correlation;  // links a launch and the work that it launched
  int64_t operator_id;  // the operator that launched it, in Kineto's numbering
  int64_t host_start, host_end;  // unix time in ns, as all times in this file
  int32_t thread;
  void *start, *end;               // events
  int64_t device_start = 0, device_end = 0;
};

// An event and its time by the host's clock: the origin of a device's times.
struct Origin {
  void* event = nullptr;
  int64_t time = 0;
};

std::mutex g_mutex;  // never held while the chip is called: a chip in Python needs the GIL
std::vector<Activity> g_activities;
std::map<int, Origin> g_origins;
std::atomic<int32_t> g_next{1};
std::atomic<uint32_t> g_sessions{0};

// The operators that this thread is running; those of an earlier session do not count.
struct Correlations {
  uint32_t session = 0;
  std::vector<int64_t> ids;
  std::vector<int64_t>& now() {
    if (session != g_sessions.load()) ids.clear();
    session = g_sessions.load();
    return ids;
  }
};
thread_local Correlations tls_operators;

void* new_event(int device, void* stream) {
  void* event = nullptr;
  int code = runtime().event_create(device, /*timing=*/1, &event);
  if (code == DIPU_OK) code = runtime().event_record(device, event, stream);
  warn_if_failed(code, "event_record");
  return event;
}

void need_origin(int device, void* stream) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    if (g_origins.count(device) > 0) return;
  }
  warn_if_failed(runtime().stream_synchronize(device, stream), "stream_synchronize");
  const int64_t before = c10::getTime();
  void* event = new_event(device, stream);
  warn_if_failed(runtime().event_synchronize(event), "event_synchronize");
  const int64_t after = c10::getTime();
  std::lock_guard<std::mutex> lock(g_mutex);
  const bool first = g_origins.emplace(device, Origin{event, before + (after - before) / 2}).second;
  if (!first) warn_if_failed(runtime().event_destroy(device, event), "event_destroy");
}

int64_t elapsed_ns(void* from, void* to) {
  double milliseconds = 0;
  warn_if_failed(runtime().event_elapsed(from, to, &milliseconds), "event_elapsed");
  return static_cast<int64_t>(milliseconds * 1e6 + 0.5);
}

}  // namespace

void profile_begin(SpanRecord& span) {
  need_origin(span.device, span.stream);
  span.host_start = c10::getTime();
  span.start = new_event(span.device, span.stream);
}

int64_t profile_operator() {
  if ((g_listeners.load(std::memory_order_relaxed) & kProfiler) == 0) return 0;
  const auto& operators = tls_operators.now();
  return operators.empty() ? 0 : operators.back();
}

void profile_end(const SpanRecord& span) {
  void* end = new_event(span.device, span.stream);
  const auto* collective = span.collective;
  Activity a{span.name(), span.launch(), span.device, span.stream,
             collective != nullptr ? collective->bytes : span.copy.bytes, span.op == nullptr && collective == nullptr,
             collective != nullptr ? std::optional(*collective) : std::nullopt, g_next.fetch_add(1),
             collective != nullptr ? collective->launcher : profile_operator(), span.host_start, c10::getTime(),
             libkineto::systemThreadId(), span.start, end};
  std::lock_guard<std::mutex> lock(g_mutex);
  g_activities.push_back(std::move(a));
}

void profile_cancel(const SpanRecord& span) {
  warn_if_failed(runtime().event_destroy(span.device, span.start), "event_destroy");
}

namespace {

// Returns the recorded activities, with the device's times on the host's clock, and frees the events.
std::vector<Activity> take_activities() {
  std::vector<Activity> activities;
  std::map<int, Origin> origins;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    activities.swap(g_activities);
    origins.swap(g_origins);
  }
  for (auto& a : activities) {
    const Origin& origin = origins[a.device];
    warn_if_failed(runtime().event_synchronize(a.end), "event_synchronize");
    a.device_start = origin.time + elapsed_ns(origin.event, a.start);
    a.device_end = a.device_start + elapsed_ns(a.start, a.end);
    for (void* event : {a.start, a.end}) warn_if_failed(runtime().event_destroy(a.device, event), "event_destroy");
  }
  for (auto& [device, origin] : origins) warn_if_failed(runtime().event_destroy(device, origin.event), "event_destroy");
  return activities;
}

// Stream numbers in order of first use; the default stream is always 0.
class Lanes {
 public:
  int32_t of(int device, void* stream) {
    auto& known = lanes_[device];
    known.emplace(nullptr, 0);
    return known.emplace(stream, static_cast<int32_t>(known.size())).first->second;
  }
  void name(libkineto::ActivityLogger& logger, int64_t time) const {
    for (auto& [device, streams] : lanes_) {
      DipuDeviceInfo info{};
      runtime().device_info(device, &info);
      logger.handleDeviceInfo({device, device + libkineto::kExceedMaxPid, info.name, "DIPU " + std::to_string(device)}, time);
      for (auto& [stream, lane] : streams) logger.handleResourceInfo(resource(device, lane), time);
    }
  }

 private:
  std::map<int, std::map<void*, int32_t>> lanes_;

  static libkineto::ResourceInfo resource(int64_t device, int64_t lane) {
    const std::string name = "stream " + std::to_string(lane) + (lane == 0 ? " (default)" : "");
    using Info = libkineto::ResourceInfo;  // torch 2.11 has a constructor with another order
    if constexpr (std::is_aggregate_v<Info>) return Info{lane, lane, device, name};
    else return Info{device, lane, lane, name};
  }
};

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    g_sessions.fetch_add(1);
    take_activities();  // deletes those of a session that was never stopped
    for (int i = 0; is_initialized() && i < device_count(); i++) {
      if (is_open(i)) need_origin(i, nullptr);
    }
    listen(kProfiler, true);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    listen(kProfiler, false);
    activities_ = take_activities();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override {
    return {};
  }
  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, {}, 0, 0);
  }
  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback operator_of, int64_t start, int64_t) override {
    Lanes lanes;
    for (const Activity& a : activities_) {
      const auto* launcher = operator_of && a.operator_id != 0 ? operator_of(static_cast<int32_t>(a.operator_id)) : nullptr;
      add_launch(a, launcher).log(logger);
      add_work(a, lanes.of(a.device, a.stream), launcher).log(logger);
    }
    lanes.name(logger, start);
  }
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr;  // there may be several devices: processTrace names them
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    return {};
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }
  void pushCorrelationId(uint64_t id) override {
    tls_operators.now().push_back(static_cast<int64_t>(id));
  }
  void popCorrelationId() override {
    auto& ids = tls_operators.now();
    if (!ids.empty()) ids.pop_back();
  }

 private:
  std::vector<Activity> activities_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = make_buffer();

  static std::unique_ptr<libkineto::CpuTraceBuffer> make_buffer() {
    auto buffer = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer->span = libkineto::TraceSpan(0, 0, "DIPU");
    buffer->gpuOpCount = 0;
    return buffer;
  }
  GenericTraceActivity& add(ActivityType type, const Activity& a, const std::string& name, const libkineto::ITraceActivity* launcher) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& row = *buffer_->activities.back();
    row.id = a.correlation;
    row.linked = launcher;
    row.flow.id = static_cast<uint32_t>(a.correlation);
    row.flow.type = libkineto::kLinkAsyncCpuGpu;
    row.addMetadata("correlation", a.correlation);
    if (a.operator_id != 0) row.addMetadata("External id", a.operator_id);
    return row;
  }
  const GenericTraceActivity& add_launch(const Activity& a, const libkineto::ITraceActivity* launcher) {
    auto& row = add(ActivityType::PRIVATEUSE1_RUNTIME, a, a.launch, launcher);
    row.startTime = a.host_start;
    row.endTime = a.host_end;
    row.device = libkineto::processId();
    row.resource = row.threadId = a.thread;
    row.flow.start = 1;
    return row;
  }
  const GenericTraceActivity& add_work(const Activity& a, int32_t lane, const libkineto::ITraceActivity* launcher) {
    auto& row = add(a.copy ? ActivityType::GPU_MEMCPY : ActivityType::CONCURRENT_KERNEL, a, a.name, launcher);
    row.startTime = a.device_start;
    row.endTime = a.device_end;
    row.device = a.device;
    row.resource = lane;
    row.flow.start = 0;
    row.addMetadata("device", a.device);
    row.addMetadata("stream", lane);
    if (a.copy || a.collective) row.addMetadata("bytes", a.bytes);
    if (a.collective) add_collective(row, *a.collective);
    return row;
  }
  // torch's own field names for nccl's collectives
  static void add_collective(GenericTraceActivity& row, const CollectiveInfo& c) {
    row.addMetadataQuoted("Collective name", c.name);
    row.addMetadataQuoted("dtype", c.dtype);
    row.addMetadataQuoted("Process Group Name", c.group);
    row.addMetadata("Group size", c.size);
    row.addMetadata("Rank", c.rank);
  }
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    return name_;
  }
  const std::set<ActivityType>& availableActivities() const override {
    return types_;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    const bool ours = wanted.count(ActivityType::PRIVATEUSE1_RUNTIME) > 0 || wanted.count(ActivityType::CONCURRENT_KERNEL) > 0;
    return ours ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted, const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "dipu";
  const std::set<ActivityType> types_{
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::PRIVATEUSE1_RUNTIME};
};

// Events for the profiler without Kineto: profile(use_kineto=False), emit_nvtx and similar.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Event* event, int64_t* host_ns) const override {
    const int index = resolve_device(-1);
    if (device != nullptr) *device = static_cast<c10::DeviceIndex>(index);
    if (host_ns != nullptr) *host_ns = c10::getTime();
    *event = Event(new_event(index, current_stream(index)), [index](void* e) {
      if (!in_bad_fork()) warn_if_failed(runtime().event_destroy(index, e), "event_destroy");
    });
  }
  float elapsed(const Event* start, const Event* end) const override {  // in us
    for (auto* event : {start, end}) warn_if_failed(runtime().event_synchronize(event->get()), "event_synchronize");
    return static_cast<float>(elapsed_ns(start->get(), end->get())) / 1000.f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override {
    return true;
  }
  void onEachDevice(std::function<void(int)> f) const override {
    for (int i = 0; i < device_count(); i++) f(i);
  }
  void synchronize() const override {
    synchronize_device(-1);
  }
};

}  // namespace

void register_profiler() {
#ifdef DIPU_HAS_PROFILER_REGISTRY
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory([] { return std::make_unique<Profiler>(); });
#else
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
#endif
  torch::profiler::impl::registerPrivateUse1Methods(new Stubs());
}

}  // namespace dipu
