// The statistics of calls as lines of JSON, without Python: what op_tools/statistics_store.py says.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "batch.h"
#include "measure.h"

namespace op_tools {

// Where a tensor's values lie: all views of the same dense values are one place.
struct Place {
  const void* storage;
  int64_t offset;
  int type;
  c10::SmallVector<int64_t, 8> geometry;  // how many, or shape and strides where there are gaps

  bool operator==(const Place& other) const {
    return storage == other.storage && offset == other.offset && type == other.type && geometry == other.geometry;
  }
};

struct PlaceHash {
  size_t operator()(const Place& place) const;
};

// Values on the host, as they lie in memory.
struct Hosted {
  const uint8_t* data = nullptr;
  size_t count = 0;
  int64_t times = 1;  // how often each value is seen
};

// What was measured before the call was over, by address, count and type.
using Warm = std::map<std::tuple<const uint8_t*, int64_t, int>, std::string>;

class Recorder {
 public:
  // described(tensor) -> the text of one that is out of reach here; window(type, index) -> (device,
  // host, bytes) or None; starter(type): see batch.h; flush(), when there are `limit` lines;
  // problem(function or None, text).
  Recorder(bool hash_only, bool sampled, size_t limit, py::function described, py::function window, py::function starter,
           py::function flush, py::function problem);
  ~Recorder();

  // Of one tensor; any thread, without the GIL.
  void text(std::string& to, const at::Tensor& tensor, const Warm* warm = nullptr);
  void texts(std::string& to, const std::vector<at::Tensor>& tensors, const Warm* warm = nullptr);
  void warm(Warm& to, const at::Tensor& tensor);
  bool reaches(const at::Tensor& tensor);  // whether its memory can be read here
  bool handles(const at::Tensor& tensor);  // or it is reduced on its device
  void before_write(const at::Tensor& tensor) { batch_->before_write(tensor); }
  void settle();  // tensors may be written from now on, unseen
  void forget(const at::Tensor& tensor);

  // Lines that wait.
  void add(std::string_view line);
  py::bytes take(bool everything);  // those that a device is still asked for come the next time, else

  // An error of ours, about a call.
  void report(PyObject* function, const char* text);

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint32_t version;
    std::string sample, text;
    std::shared_ptr<const Awaited> awaited = nullptr;  // in place of the text
  };
  struct Window {
    c10::Device of{c10::DeviceType::CPU};
    const char *device = nullptr, *host = nullptr;
    size_t bytes = 0;
  };

  void numbers(std::string& to, const at::Tensor& tensor, const Warm* warm);
  void deferred(std::string& to, const at::Tensor& tensor);
  std::string measured(const at::Tensor& tensor, const uint8_t* data) const;
  const uint8_t* address(const at::Tensor& tensor);
  const Window& window_of(c10::Device device);
  void sweep();

  const bool hash_only_, sampled_;
  const size_t limit_;
  py::function described_, window_, flush_, problem_;
  std::unordered_map<Place, Known, PlaceHash> known_;
  std::map<std::pair<int, int>, Window> windows_;
  std::atomic<const Window*> last_{nullptr};  // the one that was asked for last
  size_t sweep_at_;
  std::shared_ptr<Batch> batch_;
  std::string lines_, held_;  // those that wait for a device
  size_t waiting_ = 0;
  std::mutex known_lock_, windows_lock_, lines_lock_;
};

std::string written(const Measured& found, bool hash_only);  // in JSON
void bind_recorder(py::module_& m);

}  // namespace op_tools
