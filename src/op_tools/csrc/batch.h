// Tensors on a device that the host does not see, reduced together by what its vendor gives: see
// op_tools/reducing.py. They wait, held by their memory, until one of them is to be written.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hash.h"
#include "launcher.h"
#include "measure.h"
#include "numbers.h"
#include "reach.h"

namespace op_tools {

class Batch {
 public:
  // sampled: some writes are not seen, so that values are known again only while they wait. starter(kind of device) ->
  // start(table, device) or None; launcher(kind, index): see launcher.h; problem(text)
  static std::shared_ptr<Batch> make(bool hash_only, bool sampled, py::function starter, py::function launcher, py::function problem);
  ~Batch();

  // A batch held by one thread for several tensors of a call: whoever takes it is not to ask for Python meanwhile.
  class Hold {
   public:
    explicit Hold(Batch& batch) : batch_(batch), trusts_(batch.sampled_ && trusted()) {}
    void take() {
      if (!lock_.owns_lock()) lock_ = batch_.locked();
    }
    void free() {
      if (lock_.owns_lock()) lock_.unlock();
    }

   private:
    friend class Batch;
    Batch& batch_;
    const bool trusts_;  // this thread, where that matters
    std::unique_lock<std::mutex> lock_;
    std::optional<c10::Stream> stream_;  // the current one of the device that was asked for last
  };

  bool takes(const at::Tensor& tensor);
  void expect(const at::Tensor& tensor) const;  // it is asked for soon
  int64_t number(Hold& hold, const at::Tensor& tensor, Kind kind, int parts);  // of what is waited for, or is known
  void before_write(Hold& hold, const at::Tensor& tensor);  // of what waits, in the order of its stream
  void forget(Hold& hold, const at::Tensor& tensor);        // a call has written it
  void start();                                 // on all that waits, before what comes next in the current stream
  void read(bool everything);                   // fills in what the device is done with, or starts and waits for all
  int64_t read_below() const { return read_below_; }  // the numbers that are filled in
  int64_t next() const { return next_; }
  void tidy();  // gives back what was forgotten, for a thread that has time

  static void put_mark(std::string& to, int64_t number);  // which stands for it in a line, until the line is taken
  class Found;
  Found found();  // what was read so far, for the one who reads
  void trust_nobody();  // from now on it is as if sampled, and what was known is not
  static void start_all();   // of every batch: something unknown is about to run
  static void forget_all();  // besides, nothing is known: it may write any memory

  // While it lives, nothing but calls that are seen runs in this thread: what was reduced is known to it until then. Of every batch.
  class Trust {
   public:
    Trust();
    ~Trust() { end(); }
    Trust(const Trust&) = delete;
    void end();

   private:
    std::vector<std::shared_ptr<Batch>> batches_;
    bool on_ = true;
  };
  static bool trusted();  // by this thread

 private:
  Batch(bool hash_only, bool sampled, py::function starter, py::function launcher, py::function problem);

  static constexpr int64_t kKnown = 1 << 16;  // results that a line may still ask for
  static constexpr int64_t kChunk = 1 << 10;

  enum class State : uint8_t { awaited, found, gone, written, failed };
  struct Result {
    std::atomic<State> state{State::awaited};
    Measured found;  // not changed after that
    void set(State now) { state.store(now, std::memory_order_release); }
    bool ready() const { return state.load(std::memory_order_acquire) != State::awaited; }
  };
  using Chunk = std::array<Result, kChunk>;

  // Where values that do not lie one after the other are.
  struct Gaps {
    at::ScalarType type;
    c10::DispatchKeySet keys;
    int64_t offset;                                         // in the storage, in values of the type
    c10::SmallVector<std::pair<int64_t, int64_t>, 4> dims;  // stride and size, the outermost first
  };
  static std::unique_ptr<Gaps> gaps_in(const at::Tensor& tensor, int64_t& times);
  static at::Tensor without(const Gaps& gaps, const c10::Storage& storage);  // a copy

  struct Piece {
    Result* to;            // null: it cannot be read any more, and says so
    c10::Storage storage;  // held, so that it is not used again
    const void* base;      // of the storage; another one: it was given back all the same
    const uint8_t* data;
    size_t count;  // values
    Kind kind;
    int64_t times;
    std::unique_ptr<Gaps> gaps;
    c10::VariableVersion counter = {};  // of writes, where it tells
    uint32_t version = 0;
    int64_t rows = 0;  // of the table

    State state() const;  // whether it can still be read
  };
  // What is left of a piece once it is asked for: little, since it goes to another thread.
  struct Asked {
    Result* to;
    uint64_t count : 56, kind : 8;
    int64_t times;
  };
  struct Started {
    py::object read;  // or
    Launched native;
    std::vector<Asked> pieces;
    int64_t below = 0;  // it and those before it have all numbers below

    bool done() const { return !native.memory.defined() || native.done(); }
  };

  static std::vector<std::shared_ptr<Batch>> living();
  std::unique_lock<std::mutex> locked();
  bool holds(const Hold& hold, int64_t number) const {  // its values are those of memory that was not written meanwhile
    if (sampled_ && number < (hold.trusts_ ? trusted_ : below_)) return false;
    return number >= oldest_ && number > next_.load(std::memory_order_relaxed) - kKnown / 2;
  }
  // Of one that is to be reduced.
  int64_t numbered(Hold& hold, const at::Tensor& tensor, Kind kind, int parts, const std::optional<Place>& place, uint32_t version, Numbers::Slot* slot);
  struct Apart {  // values with gaps
    std::unique_ptr<Gaps> gaps = nullptr;
    at::Tensor copy = {};
    int64_t times = 1;
  };
  Apart apart(Hold& hold, const at::Tensor& tensor);
  Piece& add(const at::Tensor& tensor, Kind kind, int parts, const c10::Stream& stream, Apart& apart);
  const c10::Stream& current(Hold& hold, c10::Device device) const;
  const Started* first_started();
  void start(Hold& hold);
  void forget(Hold& hold);  // all
  void start_locked();
  void start_before(Hold& hold, c10::Device device);  // what comes next in its current stream
  void launch(Started& to);
  void release();
  std::vector<Asked> asked();
  py::object started(int64_t* table, int64_t rows, const c10::Stream& stream);
  struct Size {
    int64_t rows = 0, gaps = 0;
  };
  Size sized(const c10::Stream& stream);
  void tabulate(int64_t* row, int64_t* gaps) const;
  static constexpr int64_t kPiece = 8 * kBlock;  // bytes of a row
  static int64_t rows_of(int64_t size) { return (size / 8 * 8 + kPiece - 1) / kPiece + (size % 8 != 0); }
  static int64_t* described(int64_t* to, const Piece& piece);
  void close_gaps();
  void fill(Started& group);
  const int64_t* fill(const Asked& piece, const int64_t* row) const;
  PyObject* starter_of(c10::DeviceType type);

  const bool hash_only_;
  std::atomic<bool> sampled_;
  py::function starter_, problem_;
  Launchers launchers_;
  std::map<c10::DeviceType, PyObject*> starters_;  // null: none, or it failed
  std::atomic<c10::DeviceType> taken_{c10::DeviceType::CPU};  // the one that was asked for last, and has one
  Numbers numbers_;
  std::vector<Piece> waiting_;
  std::vector<std::vector<Asked>> spare_;  // memory that is used again
  int64_t below_ = 0;                      // those of lower numbers do not wait,
  int64_t oldest_ = 0;                     // and of these nothing is known
  int trusts_ = 0;                         // threads that trust,
  int64_t trusted_ = 0;                    // in numbers from here on,
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> kept_;  // and so that no other memory has the address meanwhile
  size_t bytes_ = 0;
  std::optional<c10::Stream> stream_;  // of all that waits
  std::deque<Started> started_;
  std::atomic<int64_t> read_below_{0};
  std::deque<std::unique_ptr<Chunk>> known_;  // by number, the newest of them
  std::unique_ptr<Chunk> chunk_;              // the next one, made by who has time
  int64_t first_ = 0;
  std::atomic<int64_t> next_{0};
  const int forks_;  // when it was made
  std::mutex mutex_, starters_mutex_, reading_;
};

inline void Batch::expect(const at::Tensor& tensor) const {
  const auto* own = tensor.unsafeGetTensorImpl();
  const void* counter;
  static_assert(sizeof own->version_counter() == sizeof counter);
  std::memcpy(&counter, &own->version_counter(), sizeof counter);
  __builtin_prefetch(counter);
  numbers_.expect(memory_of(tensor));
}

inline int64_t Batch::number(Hold& hold, const at::Tensor& tensor, Kind kind, int parts) {  // hot path
  hold.take();
  const auto place = place_of(tensor);
  const uint32_t version = place ? version_of(tensor) : 0;
  Numbers::Slot* slot = numbers_.find(memory_of(tensor));
  if (place && slot != nullptr) {
    const Numbers::View* known = slot->find(*place);
    if (known != nullptr && known->version == version && holds(hold, known->number)) return known->number;
  }
  return numbered(hold, tensor, kind, parts, place, version, slot);
}

// What was read, by number: until the next `read`.
class Batch::Found {
 public:
  void put(std::string& to, int64_t number) const;  // in JSON
  void fill(std::string& to, std::string_view line) const;

 private:
  friend class Batch;
  std::vector<const Chunk*> chunks_;
  int64_t first_ = 0, next_ = 0;
  bool hash_only_ = false;
};

// In this thread a batch is at work: what is called meanwhile is not the program's.
bool batch_at_work();

class AtWork {
 public:
  AtWork();
  ~AtWork();
  AtWork(const AtWork&) = delete;

 private:
  const bool before_;
};

}  // namespace op_tools
