// Tensors on a device that the host does not see, reduced together by what its vendor gives: see
// op_tools/reducing.py. They wait, held by their memory, until one of them is to be written.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "measure.h"

namespace op_tools {

// The statistics of one tensor in JSON, once the device was asked.
struct Awaited {
  int64_t number = 0;
  std::atomic<bool> ready{false};
  std::string text;  // not changed after that
};

class Batch {
 public:
  // starter(kind of device) -> start(table, device) or None; problem(text)
  static std::shared_ptr<Batch> make(bool hash_only, py::function starter, py::function problem);
  ~Batch();

  bool takes(const at::Tensor& tensor);
  std::shared_ptr<Awaited> add(const at::Tensor& tensor, Kind kind, int parts);
  void before_write(const at::Tensor& tensor);  // of what waits, in the order of its stream
  void start();                                 // on all that waits
  void read(bool everything);                   // fills in what was started before the last time, or all
  std::string filled(const std::string& lines);  // the texts in the place of the marks
  bool idle();                                  // nothing waits, nothing is to be read

  static void put_mark(std::string& to, const Awaited& one);
  static void start_all();  // of every batch: something unknown is about to run

 private:
  Batch(bool hash_only, py::function starter, py::function problem);

  struct Piece {
    std::shared_ptr<Awaited> to;
    c10::Storage storage;  // held, so that it is not used again
    const void* base;      // of the storage; another one: it was given back all the same
    const uint8_t* data;
    size_t count;  // values
    Kind kind;
    int64_t times;
    size_t rows = 0;  // of the table
  };
  struct Started {
    py::object read;
    std::vector<Piece> pieces;
  };

  std::unique_lock<std::mutex> locked();
  void start_locked();
  void launch(std::vector<Piece>& pieces);
  void fill(Started& group);
  PyObject* starter_of(c10::DeviceType type);
  std::shared_ptr<Awaited> awaited(int64_t number);

  const bool hash_only_;
  py::function starter_, problem_;
  std::map<c10::DeviceType, PyObject*> starters_;  // null: none, or it failed
  std::atomic<c10::DeviceType> taken_{c10::DeviceType::CPU};  // the one that was asked for last, and has one
  std::vector<Piece> waiting_;
  std::unordered_set<const c10::StorageImpl*> storages_;
  size_t bytes_ = 0;
  std::optional<c10::Stream> stream_;  // of all that waits
  std::deque<Started> older_, started_;
  std::deque<std::shared_ptr<Awaited>> known_;  // by number, the newest of them
  int64_t first_ = 0, next_ = 0;
  std::mutex mutex_, starters_mutex_, reading_;
};

// In this thread a batch is at work: what is called meanwhile is not the program's.
bool batch_at_work();

}  // namespace op_tools
