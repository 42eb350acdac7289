// Values that a device copies on its own: when they have come, and how they come into the memory that is written.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "hash.h"
#include "sent.h"
#include "unseen.h"

namespace op_tools {
namespace {

constexpr size_t kHead = 64, kHashAt = 16;  // of op_tools/archive.py
constexpr std::chrono::microseconds kPoll(200);

void arrived(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  while (!event.query()) std::this_thread::sleep_for(kPoll);
}

}  // namespace

void Sent::settle(uint64_t stop, const std::optional<Landing>& landing) {
  std::vector<Late> due;
  {
    std::lock_guard lock(lock_);
    for (const Late& late : late_) {
      if (late.end >= stop) break;
      due.push_back(late);
    }
  }
  size_t from = landing ? landing->from : 0;
  if (landing && from == 0) landed_ = 0;  // another memory
  if (landing) put(*landing, from, due.empty() ? landing->to : due[0].at);  // so far all is well, whatever comes
  for (const c10::Stream& stream : streams_of(due, false)) arrived(stream);
  if (landing) land(due, *landing, from);
  const auto head_of = [&](const Late& late) { return landing ? landing->address + late.at : late.head; };
  for (const Late& late : due) {
    const uint64_t hashed = hash_bytes(reinterpret_cast<const uint8_t*>(head_of(late)) + kHead, late.size);
    std::memcpy(head_of(late) + kHashAt, &hashed, sizeof hashed);
  }
  std::lock_guard lock(lock_);
  for (const Late& late : due) done(late, head_of(late));
  late_.erase(late_.begin(), late_.begin() + static_cast<int64_t>(std::min(due.size(), late_.size())));
}

// The host's part up to the next of the device's own copies or to the end: it lies together.
void Sent::put(const Landing& landing, size_t& from, size_t to) {
  std::memcpy(landing.address + from, landing.host + landed_, to - from);
  landed_ += to - from;
  from = to;
}

// The device's own copies, with all that lies between two of them in its memory; then the host's part over that.
void Sent::land(const std::vector<Late>& due, const Landing& landing, size_t from) {
  const Unseen unseen;
  for (const c10::Stream& stream : streams_of(due, true)) {
    c10::Event event(stream.device_type());
    event.record(stream);
    event.block(aside(stream.device()));
  }
  const Late *first = nullptr, *last = nullptr;
  for (const Late& late : due)
    if (late.near.defined()) first = first ? first : &late, last = &late;
  if (first) fetch(first->near, landing, first->at + kHead, last->at + kHead + last->size);
  for (const Late& late : due) {
    if (!late.near.defined()) continue;
    put(landing, from, late.at + kHead);
    from += late.size;
  }
  put(landing, from, landing.to);
}

void Sent::fetch(const at::Tensor& near, const Landing& landing, size_t from, size_t to) {
  const c10::Stream stream = aside(near.device());
  {
    const c10::StreamGuard in(stream);
    const auto part = [&](const at::Tensor& of) {
      const auto start = of.storage_offset() + static_cast<int64_t>(from);
      return over(of.storage(), keys_of(of.device(), at::kByte), of.dtype(), start, {static_cast<int64_t>(to - from)}, {1});
    };
    part(landing.memory).copy_(part(near), true);
  }
  arrived(stream);
}

c10::Stream Sent::aside(c10::Device device) {
  for (const c10::Stream& stream : asides_)
    if (stream.device() == device) return stream;
  return asides_.emplace_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

std::vector<c10::Stream> Sent::streams_of(const std::vector<Late>& due, bool near) {
  std::vector<c10::Stream> streams;
  for (const Late& late : due)
    if (late.stream && late.near.defined() == near && std::find(streams.begin(), streams.end(), *late.stream) == streams.end())
      streams.push_back(*late.stream);
  return streams;
}

// The memory is used for others from now on.
void Sent::done(const Late& late, const char* head) {
  if (!late.entry || late.entry->few == nullptr) return;
  const size_t width = c10::elementSize(static_cast<c10::ScalarType>(late.entry->place.type));
  late.entry->kept.assign(head + (late.entry->few - late.head), static_cast<size_t>(few_of(late.entry->place)) * width);
  late.entry->few = nullptr, late.entry->near.reset();
}

uint64_t Sent::first() {
  std::lock_guard lock(lock_);
  return late_.empty() ? ~uint64_t{0} : late_.front().end;
}

void Sent::clear() {
  std::vector<Late> left;
  {
    std::lock_guard lock(lock_);
    left.assign(late_.begin(), late_.end());
  }
  try {  // memory that is still written must not be given back
    for (const bool near : {false, true})
      for (const c10::Stream& stream : streams_of(left, near)) arrived(stream);
  } catch (const std::exception&) {  // the device has failed, and writes nothing
  }
  std::lock_guard lock(lock_);
  for (const Late& late : late_)
    if (late.entry) late.entry->few = nullptr, late.entry->near.reset();
  late_.clear();
  entries_.clear(), recent_.clear(), previous_.clear();
}

}  // namespace op_tools
