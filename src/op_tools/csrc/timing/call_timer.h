// One run of OpTimeMeasure, as far as it is native: the calls that it times, and what comes of them.
#pragma once
#include <pybind11/pybind11.h>

#include "../call/signature.h"
#include "backward_spans.h"
#include "fork_safe_condition.h"

#include <cmath>
#include <map>
#include <thread>

namespace op_tools {

namespace py = pybind11;

// Numbers for equal keys, and a Python value for each number.
template <class Key, class Hash = std::hash<Key>>
struct NumberedValues {
  std::unordered_map<Key, int, Hash> of;
  std::vector<PyObject*> values;  // held

  int add(const Key& key, PyObject* value) {
    values.push_back(value);
    return of[key] = int(values.size()) - 1;
  }
  void clear() {
    of.clear();
    for (PyObject* value : values) Py_XDECREF(value);
    values.clear();
  }
};

// The times of some calls, as `Times` of timings.py keeps them.
struct Totals {
  int64_t count = 0;
  double total = 0, first = 0, least = INFINITY, most = 0;  // least: of those after the first
  std::vector<std::pair<int, int64_t>> classes;  // in order; in one piece, as it is looked into for each call

  void add(double ms) {
    if (count == 0) first = ms;
    else least = std::min(least, ms);
    most = std::max(most, ms);
    count++;
    total += ms;
    const int number = ms > 0 ? int(std::nearbyint(std::log(ms) * 50)) : -1'000'000;
    const auto at = std::lower_bound(classes.begin(), classes.end(), number, [](const auto& one, int wanted) { return one.first < wanted; });
    if (at != classes.end() && at->first == number) at->second++;
    else classes.insert(at, {number, 1});
  }
};

using GroupSums = std::vector<std::pair<Totals, Totals>>;  // by group: of forward, of backward

// A call that is over: what its line in the file says.
struct Done {
  int64_t id;
  int group, result, grads;
  bool backward;  // whether there was one
  double forward_ms, backward_ms;
};

// The calls that are timed, and what came of those that are over. A thread of its own asks for their times: to ask takes
// as long as to launch a kernel.
class Ledger {
 public:
  explicit Ledger(size_t limit) : limit_(limit), settle_at_(std::min(kSettle, limit)) {}
  ~Ledger() { close(); }

  std::shared_ptr<Row> new_row();
  void add(std::shared_ptr<Row> row);

  // Asks for the times of the calls that are over, so that their events are used again; everything: of
  // all, and waits for the device.
  void settle(bool everything);

  std::vector<Done> take_done();
  GroupSums take_sums();
  // Whether so many are to be written; said once for each `take_done`.
  bool is_full() { return over_ >= limit_ && !said_.exchange(true); }
  size_t waiting();
  size_t limit() const { return limit_; }
  void set_limit(size_t limit) { limit_ = limit; }
  void close();  // the thread ends

 private:
  void ask(bool everything, bool aside);  // who settles; aside: in the thread
  void tell(const std::vector<Done>& done);
  void wake();
  void work();

  static constexpr size_t kSettle = 128;  // rows: few enough that their events are soon used again
  std::atomic<size_t> limit_, over_{0};
  std::atomic<bool> said_{false};
  std::mutex settling_;
  std::mutex lock_;  // of what follows
  std::vector<std::shared_ptr<Row>> rows_;  // of calls that are not over, or not asked yet
  std::vector<std::shared_ptr<Row>> free_;  // to be used again
  size_t settle_at_;                        // when there are so many
  std::mutex told_;  // of what follows
  std::vector<Done> done_;
  GroupSums sums_;
  std::mutex waking_;  // of what follows
  Condition woken_;
  bool wanted_ = false, closed_ = false;
  std::thread thread_;
  pid_t process_ = 0;  // whose thread it is
};

// Everything but the hooks and the ledger is done under the GIL.
class Timer {
 public:
  // `host` has what Python gives to it by name; see timer.py.
  Timer(py::object host, size_t limit);
  ~Timer() { close(); }

  // One operator, as its plan knows it.
  struct Of {
    PyObject *name, *admit, *python;
    bool brief, view;
  };

  PyObject* run(const Of& of, PyObject* func, PyObject* args, PyObject* kwargs);

  void settle(bool everything);

  // The lines of the calls that are over, with those of others among them, by their ids. The cells are
  // Python's, once for each kind: cells(group, result, grads or None) -> (before, after the times).
  py::bytes lines(const std::vector<std::pair<int64_t, std::string>>& others, const py::function& cells);

  // {group: (sums of forward, of backward)}, of the calls that are over and were not told yet.
  py::dict sums();

  py::object made(uint64_t sequence) const;  // (module, site) of the call that made a node
  py::tuple group(int number) const { return py::reinterpret_borrow<py::tuple>(groups_.values[number]); }  // name, key of shapes, module, site
  py::object result(int number) const { return py::reinterpret_borrow<py::object>(results_.values[number]); }
  py::tuple grads(int number) const;
  int64_t spent() const { return cost_; }
  int64_t counted() { return std::exchange(counted_, 0); }
  size_t waiting() const { return ledger_->waiting(); }
  size_t limit() const { return ledger_->limit(); }
  void set_limit(size_t limit) { ledger_->set_limit(limit); }
  void close();
  void stop_asking() { ledger_->close(); }

 private:
  struct GroupKey {
    int key;
    PyObject *path, *site;
    bool operator==(const GroupKey& o) const { return key == o.key && path == o.path && site == o.site; }
  };
  struct GroupHash {
    size_t operator()(const GroupKey& k) const { return size_t(k.key) * 0x9E3779B97F4A7C15ull ^ size_t(k.path) * 31 ^ size_t(k.site); }
  };

  using Kind = std::pair<const Words, int>;  // of calls or results: what `NumberedValues` keeps, and it stays where it is

  // The calls of a group, and what came of them the last time: a program does mostly what it did before,
  // and to compare is cheaper than to look up.
  struct Met {
    const Kind* kind;
    PyObject *path, *site;
    int next = -1;                 // the group of the call after it
    const Kind* result = nullptr;  // null: none that is plain
  };

  // What times the calls on a device.
  struct By {
    std::shared_ptr<Clock> clock;  // null: Python's, or
    bool nobody = false;           // the tool does not work there
  };

  struct Begun;   // what is known of a call before it is made
  struct Passed;  // its arguments

  // Whose a call is: timed here, by Python, by Python as the first of its kind, by nobody.
  enum class Whose { ours, pythons, first, nobodys };

  const By& by(c10::Device device);
  PyObject* site();  // borrowed
  PyObject* path();  // borrowed
  bool busy();       // a tool's own call
  const Met* expected() const { return last_ < 0 || met_[last_].next < 0 ? nullptr : &met_[met_[last_].next]; }
  const Kind* kind_of(const Words& words) const;  // null: it is new
  Whose look(const Of& of, const Passed& passed, Signature& seen, Begun& begun);
  PyObject* sized_up(const Of& of, const Signature& seen, PyObject* func, PyObject* args, PyObject* kwargs);
  void end(const Of& of, Begun& begun, PyObject* result);
  std::shared_ptr<Row> begin(PyObject* name, const Kind& kind, const std::shared_ptr<Clock>& clock, uint64_t sequence);
  void finish(Begun& begun, bool brief, PyObject* result);
  void follow(ArgumentEdges& given, Signature& made, uint64_t sequence, const std::shared_ptr<Row>& row);
  int group_of(const Kind& kind, PyObject* name, PyObject* path, PyObject* site);
  int result_of(int group, Signature& made, PyObject* result);
  void tell(PyObject* name, const char* what);
  using Cells = std::pair<std::string, std::string>;  // of a line: before and after its times
  const Cells& cells_of(const Done& row, const py::function& cells);

  py::object works_on_, places_of_, new_site_, shape_of_, collect_, problem_, local_, paths_;
  std::map<std::pair<int, int>, By> clocks_;
  NumberedValues<Words, WordsHash> keys_;  // null: not for us
  NumberedValues<GroupKey, GroupHash> groups_;
  NumberedValues<Words, WordsHash> results_;
  std::vector<Met> met_;  // by group
  int last_ = -1;         // the group of the last call
  std::map<Places, int> grads_of_;
  std::vector<Places> grads_list_;
  struct Code {
    bool programs;  // and not a library's
    std::unordered_map<int, PyObject*> sites;  // by instruction; Python holds them, and the code
  };
  std::unordered_map<PyObject*, Code> codes_;

  static constexpr size_t kRemembered = 1 << 16;
  std::vector<std::pair<uint64_t, int>> made_{kRemembered, {~uint64_t(0), 0}};  // by sequence: a node's number and the group of its call

  std::unique_ptr<Ledger> ledger_;
  std::map<std::tuple<int, int, int>, Cells> cells_;
  int64_t counted_ = 0;
  int64_t cost_ = 0;  // nanoseconds
};

}  // namespace op_tools
