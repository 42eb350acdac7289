/* SPDX-License-Identifier: Apache-2.0 */
// Which call of the program a record is about: id, step, module, line and direction.
#pragma once

#include <c10/core/DeviceType.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "python_frames.h"

namespace op_tools {

// The texts are JSON and live as long as the process; null: unknown.
struct CallHeader {
  int64_t id = 0, step = 0;
  const std::string *op = nullptr, *module = nullptr, *site = nullptr;
  bool backward = false;
  bool infinite_argument = false;  // the program passes an Inf as a plain number
};

// The same text at one address for the life of the process. Any thread.
const std::string* interned(std::string_view text);

// Makes headers for the calls of one tool. Every method takes the GIL if it is not held.
class CallHeaders {
 public:
  // module_stack.stack[-1][1] is the module path of this thread; local.busy is true while a tool
  // works; works_on(device type) -> bool; is_program(code) -> bool; site(code, line) -> JSON;
  // quote(text) -> JSON.
  CallHeaders(py::object module_stack, py::object local, py::function works_on,
              py::function is_program, py::function site, py::function quote);
  ~CallHeaders();

  // The header of a call that is about to be made; none: a tool's own call, or a device that the
  // tool does not watch.
  std::optional<CallHeader> make(const std::string* op, c10::DeviceType device);

  py::dict take_counts();  // calls by operator since the last time

 private:
  // Module and line of a forward call, for the calls of its backward pass.
  struct Origin {
    uint64_t sequence = UINT64_MAX;
    const std::string *module = nullptr, *site = nullptr;
  };
  static constexpr size_t kOrigins = 1 << 16;
  static constexpr uint64_t kNodes = 8;  // that one call makes at most

  bool busy();
  bool works_on(c10::DeviceType device);
  const std::string* module();
  const std::string* site();
  bool is_program(PyCodeObject* code);
  void remember(const std::string* module, const std::string* site);
  const Origin* origin_of(uint64_t sequence) const;

  struct SiteHash {
    size_t operator()(const std::pair<PyCodeObject*, int>& at) const {
      return std::hash<void*>()(at.first) + static_cast<size_t>(at.second) * 0x9E3779B97F4A7C15ull;
    }
  };

  py::object module_stack_, local_;
  py::function works_on_, is_program_, site_, quote_;
  // Everything below is guarded by the GIL.
  std::array<int8_t, c10::COMPILE_TIME_MAX_DEVICE_TYPES> devices_;  // negative: not asked yet
  std::unordered_map<PyCodeObject*, bool> codes_;                   // the keys are held
  std::unordered_map<std::pair<PyCodeObject*, int>, const std::string*, SiteHash> sites_;
  std::unordered_map<std::string, const std::string*> modules_;
  std::unordered_map<const std::string*, int64_t> counts_;
  std::unique_ptr<Origin[]> origins_;
};

void bind_call_headers(py::module_& m);

}  // namespace op_tools
