// The records of a packed archive: the parts of calls as JSON, and the values of their tensors; see op_tools/archive.py.
#pragma once
#include "reach.h"
#include "sent.h"

#include <c10/util/SmallVector.h>

namespace op_tools {

// The memory that the file's next bytes are put together in: an Arena of op_tools/arena.py.
struct Room {
  void use(const py::handle& arena, uint64_t end);
  char* head() const { return address + (near.defined() ? together : filled); }
  // Its data lies behind the head already; not `here`: in the `near` memory, at its place in the file.
  void record(int kind, int part, size_t length, uint64_t hashed, uint64_t call, bool here = true);

  py::object arena;
  at::Tensor memory, near;  // `near`: as much of the device's own, for what it copies; all else lies together in `memory` then
  char* address = nullptr;
  size_t filled = 0, size = 0, together = 0;
  uint64_t end = 0;   // of the file, with what is here
  size_t used = 0;    // since Python was told
  bool locked = false;
  std::string device;
};

const std::string& name_of(c10::DeviceType type);  // "cuda"

// A value that was taken before the call that it is written with is over: its text, around the numbers of its tensors.
struct Piece {
  std::vector<std::string> texts;
};

// Which of its arguments a call has written, by their places; those that it did not return.
struct Changes {
  c10::SmallVector<size_t, 4> written;
  c10::SmallVector<std::pair<size_t, PyObject*>, 4> mutated;
};

// One at a time writes; `store` is the PackedStore, which has what only Python can do.
class Packer {
 public:
  Packer(bool sampled, uint64_t trusted, py::function window, py::function launcher)
      : reach_(std::move(window)), known_(sampled, reach_), sent_(sampled, trusted, std::move(launcher)) {}

  void part(py::object store, py::handle arena, uint64_t end, int64_t step, int kind, uint64_t call, py::handle header,
            py::tuple args, py::dict kwargs, py::dict more);
  // The same in turns: `begin`, then one of these, then `end`. The header is in JSON.
  void begin(py::object store, py::handle arena, uint64_t end, int64_t step);
  void input(uint64_t call, const std::string& header, PyObject* args, PyObject* kwargs);
  void output(uint64_t call, PyObject* result, const Changes& changes);
  void gradients(int kind, uint64_t call, const std::vector<const Piece*>& pieces, bool complete);  // null: none came
  Piece piece(PyObject* value);
  std::vector<Piece> pieces(const std::vector<at::Tensor>& gradients);
  void end();
  Piece piece(py::object store, py::handle arena, uint64_t end, int64_t step, py::handle value);
  At take(py::object store, py::handle arena, uint64_t end, int64_t step, py::handle tensor);
  void forget(const std::vector<at::Tensor>& tensors);
  void forget_all();  // that a device has copied
  void trust_nobody();  // see Sent
  void settle(uint64_t stop) { sent_.settle(stop, std::nullopt); }
  void land(uint64_t stop, const at::Tensor& host, const at::Tensor& landing, size_t from, size_t to);
  uint64_t first() { return sent_.first(); }
  void clear() { sent_.clear(); }
  void release() { room_ = {}; }

  size_t used() const { return room_.used; }
  const Room& room() const { return room_; }
  bool over = false;  // nothing more is to be written
  int64_t saved = 0;  // bytes that were not written again
  size_t unspent = 0;  // bytes that the budget has not heard of
  int64_t sent = 0;   // tensors that a device copied on its own

 private:
  struct Over {  // a part is
    ~Over() { of.end(); }
    Packer& of;
  };
  void open(const std::string& header);
  void close(int kind, uint64_t call);
  void ensure(size_t need, const std::string& kind);
  void find_tensors(PyObject* value);
  void look();
  void write(PyObject* value, bool encoded);
  void write_items(PyObject* sequence, bool encoded);
  void write_dict(PyObject* dict, bool encoded);
  void write_number(PyObject* value);
  void write_text(PyObject* value);
  void write_word(const char* kind, const char* word);
  void write_other(PyObject* value, bool encoded);
  void write_tensor(PyObject* value);
  void write_tensor(const at::Tensor& tensor, int number, const At& at);
  void write_piece(const Piece& piece);
  At take(PyObject* value);
  At take(const at::Tensor& tensor);  // a plain one
  At reached(const at::Tensor& tensor);
  At far(const at::Tensor& tensor);
  void check_allowed(c10::DeviceType type);

  struct Pairs {
    size_t operator()(const std::pair<uint64_t, int64_t>& pair) const { return pair.first ^ static_cast<uint64_t>(pair.second); }
  };

  Reach reach_;
  Unchanged<At> known_;  // where the host reads their memory
  Sent sent_;            // where it does not
  std::unordered_map<std::pair<uint64_t, int64_t>, At, Pairs> contents_;
  Room room_;
  // of the part that is being written
  py::object store_;
  int64_t step_ = 0;
  std::string text_;
  std::vector<std::string>* pieces_ = nullptr;
  std::unordered_map<PyObject*, std::pair<int, At>> numbers_;
  int number_ = 0;
  std::vector<const at::Tensor*> tensors_;
  bool allowed_ = false;          // it was asked whether the device may be asked for copies
  std::map<c10::DeviceType, py::object> capturing_;  // whether one captures a graph: whom to ask
  std::vector<py::object> held_;  // what Python made of others: an address is used again
};

}  // namespace op_tools
