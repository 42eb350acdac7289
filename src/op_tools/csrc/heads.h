// The start of a call's line, as `statistics_store.head` writes it, without a line of Python.
#pragma once

#include <c10/core/DeviceType.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "frames.h"
#include "raw.h"
#include "reach.h"
#include "threads.h"

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
  // `count`: that of the name, where it is known.
  using Count = std::atomic<int64_t>;
  std::optional<Head> head(const std::string* name, c10::DeviceType kind, bool below = false, Count* count = nullptr);
  Count* count_of(const std::string* name);
  py::dict counts();  // calls of each name since the last time; under the GIL

 private:
  // Texts in JSON that stay where they are; null: nothing is known.
  struct Where {
    const std::string *module = nullptr, *site = nullptr;
  };
  // Written by one thread, read by that of autograd: by its number, which is set last.
  struct Remembered {
    std::atomic<uint64_t> sequence{UINT64_MAX};
    std::atomic<const std::string*> module{nullptr}, site{nullptr};
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

  // What a thread has found out: it asks here first, and takes no lock.
  struct Own {
    struct Site {
      uint64_t at;  // the address of the instruction
      const std::string* site;
    };
    struct Counted {
      const std::string* name;
      Count* count;
    };
    uint64_t of = 0;  // the number of the object that it is of
    std::array<uint64_t, 256> codes = {};  // the address, and in its last bit whether it is the program's
    std::array<Site, 256> sites = {};
    std::array<Counted, 256> counted = {};
    std::string path;  // the last one, and that in JSON
    const std::string* module = nullptr;
    OwnPart busy, stack;
    uint64_t last = 0;  // what autograd had counted at the last call
  };
  static Own& own();

  bool look(Own& own, c10::DeviceType kind, Now& now);     // false: something of it is not known yet
  bool look_at_module(Own& own, Now& now);
  bool look_at_site(Own& own, const PyThreadState* state, Now& now);
  void look_up(Own& own, c10::DeviceType kind, Now& now);  // under the GIL
  bool works_on(c10::DeviceType kind);
  const std::string* module(Own& own);
  const std::string* site();
  bool is_programs(PyCodeObject* code);
  std::optional<bool> programs(Own& own, const PyCodeObject* code);  // none: it is not known yet; so below
  const std::string* site_of(Own& own, const Frame& frame);
  void remember(Own& own, bool below, const Where& where);
  Where forward_of(uint64_t sequence) const;

  const uint64_t number_;
  py::object modules_, local_;
  py::function works_, programs_, site_, quoted_;
  py::object stack_key_, busy_key_;
  const bool frames_known_;
  std::array<std::atomic<int8_t>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kinds_;  // whether it works there; negative: not known
  std::unique_ptr<Remembered[]> forward_;
  std::mutex lock_;  // of all that follows; never held where Python is asked
  std::unordered_map<std::string, const std::string*, TextHash, std::equal_to<>> quotes_;
  ska::flat_hash_map<PyObject*, bool, AddressHash> codes_;  // whether it is the program's; they are held
  ska::flat_hash_map<std::pair<PyObject*, int>, const std::string*, CodeHash> sites_;
  std::unordered_map<const std::string*, Count> counts_;
};

void bind_heads(py::module_& m);

}  // namespace op_tools
