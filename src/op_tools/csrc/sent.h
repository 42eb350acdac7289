// Values that a device copies on its own, behind what made them; see op_tools/late.py.
#pragma once
#include "copies.h"
#include "reach.h"

#include <c10/core/Stream.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>

namespace op_tools {

using At = std::pair<int64_t, int64_t>;  // where values are in the file, and how many bytes

constexpr int64_t kSampled = 32;  // elements that are looked at to see whether memory is as it was
inline int64_t few_of(const Place& place) { return std::min(place.count, kSampled); }

class Sent {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  // Where the values of a piece of memory were sent.
  struct Entry {
    Weak storage;
    Place place;
    uint32_t version;
    At at;
    uint64_t number, sent;  // of tensors, when it was looked at last and when it was sent
    uint64_t turn;          // of looks
    int64_t step;
    c10::Device device;
    std::optional<c10::Stream> stream;
    const char* few = nullptr;  // some of its elements, in the memory that they were sent to
    std::string kept;           // the same, once that is used for others
    at::Tensor near;            // the device's own copy, while they are not there yet
    int64_t near_at = 0;        // the first of the few in it, in bytes
  };

  // `trusted`: tensors for which autograd's count of writes is believed, within a step.
  Sent(bool sampled, uint64_t trusted, py::function launcher) : sampled_(sampled), trusted_(trusted), copies_(std::move(launcher)) {}

  // Makes certain that what is known of these is so, where it was not looked at for long: by one copy of a few elements of
  // each. For the tensors of a part of a call, before `find` is asked for them.
  void look(const std::vector<const at::Tensor*>& tensors, int64_t step);
  std::optional<At> find(const at::Tensor& tensor, int64_t step);
  // Has the current stream copy a tensor into memory, behind a head that will be at `end` in the file; unless that memory
  // is page-locked, waits for it. Where there is a `near` memory of the device for it, it is copied there, which takes the
  // stream much less time, and from there when it settles. `give` is to follow, before anything may write the tensor.
  // `at` is the place of the head in both, but where there is a `near` one the host's part lies together, the head at
  // `address`. Whether it was copied to the `near` one.
  struct Memory {
    const at::Tensor &host, &near;
    char* address;
    bool locked;
  };
  bool send(const at::Tensor& tensor, const Memory& to, size_t at, uint64_t end, int64_t step);
  void give();  // the copies that were put off, many at once
  bool launches(const at::Tensor& tensor);  // a kernel for them, in a stream of which no graph is captured
  void forget(const at::Tensor& tensor);
  void forget_all();
  void trust_nobody();  // no count of writes is believed from now on

  // Page-locked memory for what the file gets of one that has a `near` one: of these places in it.
  struct Landing {
    char *address, *host;
    size_t from, to;
    at::Tensor memory;
  };
  // Of the thread that settles: waits for what is due in the file before `stop`, and puts the hashes into the heads.
  void settle(uint64_t stop, const std::optional<Landing>& landing);
  uint64_t first();  // the first in the file that has not come
  void clear();

 private:
  struct Late {
    uint64_t end;
    char* head;
    size_t size;
    std::optional<c10::Stream> stream;
    std::shared_ptr<Entry> entry;
    size_t at;        // the head, in memory that begins where the file's does
    at::Tensor near;  // whole: its values are there
  };
  using Entries = std::vector<std::shared_ptr<Entry>>;

  std::shared_ptr<Entry> valid(const at::Tensor& tensor);
  bool fresh(const Entry& entry, int64_t step) const;
  Entries foreseen(const Entries& wanted, int64_t step);
  void give_copies();
  void copy(const at::Tensor& tensor, const Layout& layout, const at::Tensor& memory, size_t start, bool locked);
  void put(const Landing& landing, size_t& from, size_t to);
  void land(const std::vector<Late>& due, const Landing& landing, size_t from);
  void fetch(const at::Tensor& near, const Landing& landing, size_t from, size_t to);
  static std::vector<c10::Stream> streams_of(const std::vector<Late>& due, bool near);
  c10::Stream aside(c10::Device device);
  void compare(const Entries& entries, int64_t step);
  void compare_some(const Entries& entries, c10::Device device, c10::ScalarType type, int64_t step);
  void keep(const at::Tensor& tensor, Late& late, int64_t step);
  void sweep();
  void turn_over(int64_t step);
  void done(const Late& late, const char* head);

  std::atomic<bool> sampled_;
  std::atomic<uint64_t> trusted_;
  std::unordered_map<Place, std::shared_ptr<Entry>, PlaceHash> entries_;
  std::unordered_map<const void*, uint64_t> written_;  // memory, and the number when it was written last
  uint64_t number_ = 0, turn_ = 0;
  size_t sweep_at_ = 4096;
  std::deque<Late> late_;
  size_t landed_ = 0;  // bytes of the host's part
  Entries recent_, previous_;  // those that were sent or looked at in this step, and in the one before
  int64_t recent_step_ = 0;
  Copies copies_;
  std::vector<at::Tensor> from_, to_;  // copies that were put off, where there is no kernel for them,
  Entries owed_;                       // and what is known already of all that were
  std::vector<c10::Stream> asides_;  // of the thread that settles: one for each device
  std::mutex lock_;
};

}  // namespace op_tools
