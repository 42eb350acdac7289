// SPDX-License-Identifier: Apache-2.0
// Passes the first calls of each signature on to a tool, and makes the others without it.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <memory>
#include <unordered_map>

#include "../call/call_headers.h"
#include "../call/ids.h"
#include "../call/python_frames.h"
#include "../call/signature.h"

namespace op_tools {
namespace {

// The calls of one run of a tool. Everything is done with the GIL.
struct Signatures {
  int64_t limit;  // calls of a signature that reach the tool
  py::object local;
  std::unordered_map<Words, int64_t, WordsHash> calls;

  bool busy() const {
    static PyObject* const name = PyUnicode_InternFromString("busy");
    thread_local LocalDict dict;
    return dict.get(local, name) == Py_True;
  }
};

// Calls of one function: `around(func, args, kwargs)`.
class FilteredFunction {
 public:
  FilteredFunction(std::shared_ptr<Signatures> signatures, const std::string& name,
                   py::object selected)
      : signatures_(std::move(signatures)),
        name_(interned(name)),
        selected_(std::move(selected)) {}

  py::object operator()(const py::object& func, const py::tuple& args, const py::dict& kwargs) {
    const auto signatures = signatures_;  // the tool may be stopped in the call
    if (signatures->busy()) return func(*args, **kwargs);
    Signature signature;
    if (!read_call(signature, args, kwargs)) return selected_(func, args, kwargs);
    auto& count = signatures->calls[signature.words];
    if (count < signatures->limit) {
      count++;
      return selected_(func, args, kwargs);
    }
    next_id.fetch_add(1, std::memory_order_relaxed);  // every call has an id
    PyObject* made = PyObject_Call(func.ptr(), args.ptr(), kwargs.ptr());
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  }

 private:
  // False: the signature does not say all that matters.
  bool read_call(Signature& to, const py::tuple& args, const py::dict& kwargs) const {
    to.strided = true;
    const bool backward = torch::autograd::get_current_graph_task_id() != -1;
    to.words.insert(to.words.end(),
                    {uint64_t(name_), uint64_t(backward), uint64_t(c10::GradMode::is_enabled())});
    read_arguments(args.ptr(), kwargs.ptr(), to);
    return to.plain && !to.tensors.empty() &&
           !c10::impl::tls_is_dispatch_key_included(
               c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  }

  const std::shared_ptr<Signatures> signatures_;
  const std::string* const name_;
  const py::object selected_;
};

}  // namespace

void bind_signature_filter(py::module_& m) {
  py::class_<FilteredFunction>(m, "FilteredFunction")
      .def("__call__", &FilteredFunction::operator());
  py::class_<Signatures, std::shared_ptr<Signatures>>(m, "SignatureFilter")
      .def(py::init([](int64_t limit, py::object local) {
        return std::make_shared<Signatures>(Signatures{limit, std::move(local), {}});
      }))
      .def("around",
           [](const std::shared_ptr<Signatures>& self, const std::string& name,
              py::object selected) { return FilteredFunction(self, name, std::move(selected)); });
}

}  // namespace op_tools
