// SPDX-License-Identifier: Apache-2.0
// Stacks of Python and C++: recorded quickly, formatted on demand.
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "runtime/memory_events.h"

namespace py = pybind11;

namespace dipu {

static bool python_is_there() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

Context gather_stack(bool cpp) {
  if (!python_is_there()) return nullptr;
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, cpp);
}

namespace {

// torch checks for torch._inductor when it formats a stack, and thereby imports it: that takes
// seconds, and is impossible at exit. While this object lives, torch finds nothing, unless it is
// already loaded.
class WithoutInductor {
 public:
  WithoutInductor() {
    const auto modules = py::module_::import("sys").attr("modules");
    if (modules.contains("torch._inductor")) return;
    torch_ = py::module_::import("torch");
    torch_.attr("_inductor") = py::none();
  }
  ~WithoutInductor() {
    const auto hidden = [&] { return torch_.attr("__dict__").attr("get")("_inductor", 1).is_none(); };
    if (torch_ && hidden()) py::delattr(torch_, "_inductor");
  }

 private:
  py::object torch_;
};

bool has_no_file(const torch::unwind::Frame& frame) {  // no debug information: C or C++
  return frame.filename.empty() || frame.filename == "??";
}

// Whether to omit a frame: those that torch.cuda._memory_viz omits, the interpreter, unnamed functions.
bool is_noise(const torch::unwind::Frame& frame) {
  const auto begins = [&](const char* part) { return frame.funcname.rfind(part, 0) == 0; };
  if (has_no_file(frame) && (begins("Py") || begins("_Py"))) return true;
  for (const char* part : {"unwind::unwind", "CapturedTraceback::gather", "_start", "__libc_start", "PyEval_", "PyObject_",
                           "_PyEval", "_PyObject", "PyFunction_", "_PyFunction", "pymain_", "Py_BytesMain", "Py_RunMain",
                           "_PyRun", "PyRun_", "run_mod", "pyrun_", "run_eval_code", "method_vectorcall", "cfunction_", "??",
                           "c10::impl::", "pybind11::", "dipu::gather_", "[clone"}) {
    if (frame.funcname.find(part) != std::string::npos) return true;
  }
  for (const char* part : {"core/boxing", "/Register", "/Redispatch", "ceval", "Objects/"}) {
    if (frame.filename.find(part) != std::string::npos) return true;
  }
  return false;
}

bool is_python(const torch::unwind::Frame& frame) {
  return !has_no_file(frame) && frame.funcname.find("::") == std::string::npos && frame.funcname.find('(') == std::string::npos;
}

std::string line_of(const torch::unwind::Frame& frame) {
  if (is_python(frame)) return frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname;
  std::string name = frame.funcname;
  for (size_t at; (at = name.find("(anonymous namespace)::")) != std::string::npos;) name.erase(at, 23);
  return name.substr(0, name.find('('));  // without the types of its arguments
}

// The stacks of the contexts, symbolized all at once; place[i] is the position of stack i.
struct Told {
  torch::SymbolizedTracebacks symbols;
  std::vector<size_t> places;

  explicit Told(const std::vector<Context>& contexts) {
    std::vector<torch::CapturedTraceback*> stacks;
    for (size_t i = 0; i < contexts.size(); i++) {
      if (contexts[i] == nullptr) continue;
      stacks.push_back(torch::getCapturedTracebackFromContext(contexts[i]));
      places.push_back(i);
    }
    if (stacks.empty()) return;
    const WithoutInductor quick;
    symbols = torch::symbolize(stacks);
  }
};

}  // namespace

std::vector<py::object> python_stacks(const std::vector<Context>& contexts) {
  const Told told(contexts);
  std::vector<py::dict> frames;
  for (const auto& frame : told.symbols.all_frames) {
    frames.push_back(py::dict(py::arg("name") = frame.funcname, py::arg("filename") = frame.filename, py::arg("line") = frame.lineno));
  }
  std::vector<py::object> stacks(contexts.size(), py::list());
  for (size_t i = 0; i < told.places.size(); i++) {
    py::list stack;
    for (const auto index : told.symbols.tracebacks[i]) stack.append(frames[index]);
    stacks[told.places[i]] = stack;
  }
  return stacks;
}

std::vector<std::string> tell_stacks(const std::vector<Context>& contexts) {
  std::vector<std::string> texts(contexts.size());
  if (!python_is_there()) return texts;
  py::gil_scoped_acquire gil;
  const Told told(contexts);
  for (size_t i = 0; i < told.places.size(); i++) {
    std::ostringstream python, cpp;
    for (const auto index : told.symbols.tracebacks[i]) {
      const auto& frame = told.symbols.all_frames[index];
      if (!is_noise(frame)) (is_python(frame) ? python : cpp) << "    " << line_of(frame) << "\n";
    }
    texts[told.places[i]] = python.str() + (cpp.str().empty() ? "" : "    in C++:\n" + cpp.str());
  }
  return texts;
}

}  // namespace dipu
