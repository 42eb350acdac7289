// The statistics of calls as lines of JSON, without Python: what op_tools/statistics_store.py says.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "batch.h"
#include "condition.h"
#include "measure.h"
#include "raw.h"
#include "reach.h"

namespace op_tools {

// What was measured before the call was over, by address, count and type.
using Warm = std::map<std::tuple<const uint8_t*, int64_t, int>, std::string>;

class Recorder {
 public:
  // described(tensor) -> the text of one that is out of reach here; window(type, index) -> (device,
  // host, bytes) or None; starter and launcher: see batch.h; flush(), when there are `limit` lines;
  // problem(function or None, text).
  Recorder(bool hash_only, bool sampled, size_t limit, py::function described, py::function window, py::function starter,
           py::function launcher, py::function flush, py::function problem);
  ~Recorder();

  // How the values of a tensor are found: it is none for a recorder, Python tells it, the host reads it, its device reduces it.
  enum class Way : uint8_t { none, python, host, device };
  [[gnu::always_inline]] Way way(const at::Tensor& tensor) {  // hot path: mostly it is on the device that was asked for last
    if (is_plain(tensor) && key_of(tensor.device()) == far_.load(std::memory_order_relaxed) && tensor.numel() != 0 &&
        type_of(tensor.scalar_type()).name != nullptr) {
      batch_->expect(tensor);
      return Way::device;
    }
    return looked_for(tensor);
  }

  // Of one tensor; any thread, without the GIL. With a hold, for several of a call.
  void tensor(Raw& to, const at::Tensor& tensor, const Warm* warm = nullptr);
  void tensor(Batch::Hold& hold, Way way, Raw& to, const at::Tensor& tensor, const Warm* warm = nullptr) {
    if (way == Way::device) defer(hold, to, tensor);
    else tell(hold, way, to, tensor, warm);
  }
  Batch::Hold hold() { return Batch::Hold(*batch_); }
  std::string text(const at::Tensor& tensor);  // in words
  void warm(Warm& to, const at::Tensor& tensor);
  bool reaches(const at::Tensor& tensor) { return reach_.reaches(tensor); }  // whether its memory can be read here
  bool handles(const at::Tensor& tensor) { return way(tensor) != Way::none; }
  void before_write(Batch::Hold& hold, const at::Tensor& tensor) { batch_->before_write(hold, tensor); }
  void settle();         // tensors may be written from now on, unseen, or not: see Batch::Trust
  void settle_at_once();  // a call is about to write some
  void call_over();       // the same as `settle`, unless tensors wait for the next call
  // Torch alone writes them, so that they do: until Python says otherwise, or there are `groups` of processes.
  void trust_torch(py::dict groups);
  void trust_nobody();
  bool settles() const { return sampled_; }  // or that does nothing: every write is seen
  void forget(Batch::Hold& hold, const at::Tensor& tensor);
  void forget(const at::Tensor& tensor) {
    auto held = hold();
    forget(held, tensor);
  }

  std::atomic<size_t> limit;  // of lines that wait
  bool defers() const { return deferring_; }  // a device is asked for some

  // Lines that wait.
  void add(const Raw& line);
  void add(std::string_view line);
  py::bytes take();  // all of them

  // For a thread that does nothing else, until it stops: writes what there is to a file, once that is
  // worth it, and says how many bytes; or what there is, for Python to fill in. Nothing: `end_work` was
  // called, and the rest is to be taken.
  py::object work(int file);
  void stop_work();
  void end_work();

  // An error of ours, about a call.
  void report(PyObject* function, const char* text);

 private:
  static int key_of(c10::Device device) { return static_cast<int>(device.type()) << 8 | static_cast<uint8_t>(device.index()); }
  Way looked_for(const at::Tensor& tensor);
  void numbers(Raw& to, const at::Tensor& tensor, const Warm* warm);
  void defer(Batch::Hold& hold, Raw& to, const at::Tensor& tensor);  // it is reduced on the device, and read when the lines are taken
  void tell(Batch::Hold& hold, Way way, Raw& to, const at::Tensor& tensor, const Warm* warm);
  std::string measured(const at::Tensor& tensor, const uint8_t* data) const;
  template <typename Put>
  void append(Put put);
  void wait_for_lines(std::unique_lock<std::mutex>& lock);
  void put_into_words(bool everything);  // but those that a device is still asked for

  bool is_alone();

  const bool hash_only_;
  std::atomic<bool> sampled_;
  py::function described_, flush_, problem_;
  Reach reach_;
  Unchanged<std::string> known_;
  std::shared_ptr<Batch> batch_;
  Raw lines_, spare_;  // the second: memory that is used again
  size_t waiting_ = 0;
  bool working_ = false, ready_ = false, ending_ = false, asleep_ = false;  // a thread does; there is something for it to do
  std::mutex lines_lock_;
  Condition wake_, room_;
  std::deque<std::pair<Raw, int64_t>> held_;  // lines that wait for a device, with a number that is above all of theirs
  std::string words_;
  std::mutex words_lock_;  // taken before the other
  std::atomic<bool> deferring_{false}, alone_{false};
  PyObject* groups_ = nullptr;
  std::atomic<int> far_{-1};  // a device that the host does not see, and that reduces: the one that was asked for last
};

void put_found(std::string& to, const Measured& found, bool hash_only);  // in JSON
std::string written(const Measured& found, bool hash_only);
void bind_recorder(py::module_& m);

}  // namespace op_tools
