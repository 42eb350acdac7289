// The start of a call's line, as `statistics_store.head` writes it, without a line of Python.
#pragma once

#include <c10/core/DeviceType.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "raw.h"
#include "reach.h"

namespace op_tools {

class Heads {
 public:
  // modules.stack[-1][1] is the path of the module that this thread is in, local.busy says that a tool
  // is at work; works(kind of device); programs(code) -> whether it is the program's; site(code, line)
  // -> that in JSON; quoted(text) -> JSON.
  Heads(py::object modules, py::object local, py::function works, py::function programs, py::function site,
        py::function quoted);
  ~Heads();

  // Of a call that is about to be made; none: not one to write down. With the GIL or without, which is
  // asked for only where something is seen for the first time. `below`: autograd has made its node.
  std::optional<Head> head(const std::string* name, c10::DeviceType kind, bool below = false);
  py::dict counts();  // calls of each name since the last time; under the GIL

 private:
  // Texts in JSON that stay where they are; null: nothing is known.
  struct Where {
    const std::string *module = nullptr, *site = nullptr;
  };
  struct Remembered {
    uint64_t sequence = UINT64_MAX;
    Where where;
  };
  struct CodeHash {
    using hash_policy = ska::power_of_two_hash_policy;
    size_t operator()(const std::pair<PyObject*, int>& at) const { return AddressHash()(at.first) + static_cast<size_t>(at.second) / 2; }
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  struct Now {
    bool works = true, busy = false;
    Where where;
  };

  bool look(c10::DeviceType kind, Now& now);     // false: something of it is not known yet
  void look_up(c10::DeviceType kind, Now& now);  // under the GIL
  bool works_on(c10::DeviceType kind);
  const std::string* module();
  const std::string* site();
  bool is_programs(PyCodeObject* code);
  void remember(bool below, const Where& where);
  Where forward_of(uint64_t sequence) const;

  py::object modules_, local_;
  py::function works_, programs_, site_, quoted_;
  py::object stack_key_, busy_key_;
  const bool frames_known_;
  std::mutex lock_;  // of all that follows; never held where Python is asked
  std::map<c10::DeviceType, bool> kinds_;
  std::unordered_map<std::string, const std::string*, TextHash, std::equal_to<>> quotes_;
  ska::flat_hash_map<PyObject*, bool, AddressHash> codes_;  // whether it is the program's; they are held
  ska::flat_hash_map<std::pair<PyObject*, int>, const std::string*, CodeHash> sites_;
  std::vector<Remembered> forward_;
  using Counts = ska::flat_hash_map<const std::string*, int64_t, AddressHash>;
  Counts counts_;
};

void bind_heads(py::module_& m);

}  // namespace op_tools
