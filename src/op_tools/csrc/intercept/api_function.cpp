// SPDX-License-Identifier: Apache-2.0
// The api frontend: one of torch's Python functions whose calls go to a sink.
#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>

#include "../autograd/gradient_hooks.h"
#include "../call/call_view.h"

namespace op_tools {
namespace {

class ApiFunction {
 public:
  // `owner` lives as long as gradients may come in. `counts_first_write`: false for a function that
  // writes its first argument without a change of its version counter. `otherwise(func, args,
  // kwargs)` makes the calls that the sink does not accept.
  ApiFunction(std::shared_ptr<Sink> sink, py::object owner, std::shared_ptr<CallHeaders> headers,
              const std::string& name, bool may_write, bool counts_first_write,
              py::object otherwise)
      : owner_(std::move(owner)),
        sink_(std::move(sink)),
        headers_(std::move(headers)),
        name_(interned(name)),
        may_write_(may_write),
        counts_first_write_(counts_first_write),
        otherwise_(std::move(otherwise)) {}

  py::object operator()(const py::object& func, const py::tuple& args, const py::dict& kwargs) {
    PythonTensors given;
    size_t first = 0;  // tensors in the first argument
    for (size_t i = 0; i < args.size(); i++) {
      collect(PyTuple_GET_ITEM(args.ptr(), i), given);
      if (i == 0) first = given.tensors.size();
    }
    collect(kwargs.ptr(), given);
    if (!is_fit(given)) return otherwise_(func, args, kwargs);
    // what is used after the call: the tool may be stopped in it, and this object with it
    const auto sink = sink_;
    const py::object owner = owner_;
    CallView call;
    call.function = func.ptr(), call.args = args.ptr(), call.kwargs = kwargs.ptr();
    std::optional<ArgumentEdges> edges;
    const uint64_t sequence = at::sequence_number::peek();
    bool begun = false;
    guarded(*sink, [&] {
      if (c10::GradMode::is_enabled()) edges.emplace(given.tensors);
      begun = begin(call, given, first);
    });
    auto result =
        py::reinterpret_steal<py::object>(PyObject_Call(func.ptr(), args.ptr(), kwargs.ptr()));
    if (!result) throw py::error_already_set();
    if (!begun || result.ptr() == Py_NotImplemented) return result;
    guarded(*sink, [&] {
      call.result = result.ptr();
      sink->returned(call);
      end(*sink, owner, call, edges, sequence);
    });
    return result;
  }

 private:
  template <typename Work>
  static void guarded(Sink& sink, Work work) {
    try {
      work();
    } catch (const std::exception& error) {  // a tool must not end the program that it watches
      PyErr_Clear();
      sink.report(nullptr, error.what());
    }
  }

  bool is_fit(const PythonTensors& given) {
    if (!given.plain || given.tensors.empty() || is_under_mode()) return false;
    return std::all_of(given.tensors.begin(), given.tensors.end(), [&](const at::Tensor* one) {
      return !one->is_inference() && sink_->accepts(*one);
    });
  }

  bool begin(CallView& call, const PythonTensors& given, size_t first) {
    const auto header = headers_->make(name_, device_type_of(given.tensors));
    if (!header) return false;
    call.header = *header;
    call.header.infinite_argument = given.has_infinity && sink_->marks_infinite_arguments();
    for (size_t i = 0; i < given.tensors.size(); i++)
      call.add(*given.tensors[i], !counts_first_write_ && i < first);
    call.may_write = may_write_ || given.has_true || py::handle(call.kwargs).contains("out");
    const WithoutGil reading(*sink_, given.tensors);
    sink_->enter(call);
    return true;
  }

  void end(Sink& sink, const py::object& owner, CallView& call, std::optional<ArgumentEdges>& edges,
           uint64_t sequence) {
    PythonTensors made;
    collect(call.result, made);
    call.find_written();
    if (!call.written.empty()) may_write_ = true;
    if (edges && edges->any()) {
      CallRegion region(*edges, made.tensors, sequence);
      if (!region.members.empty()) sink.follow(call, region, made.tensors.size(), held(owner));
    }
    const WithoutGil reading(sink, made.tensors);
    sink.exit(call, made.tensors);
  }

  static std::shared_ptr<void> held(const py::object& owner) {
    return {owner.inc_ref().ptr(), [](PyObject* object) {
              if (!Py_IsInitialized()) return;
              const py::gil_scoped_acquire gil;  // the graph may end in any thread
              Py_DECREF(object);
            }};
  }

  // Where the host reads tensors, that takes long: other threads of Python run meanwhile.
  struct WithoutGil {
    std::optional<py::gil_scoped_release> released;
    WithoutGil(Sink& sink, const TensorList& tensors) {
      const auto reads = [&](const at::Tensor* one) { return sink.reads_on_host(*one); };
      if (std::any_of(tensors.begin(), tensors.end(), reads)) released.emplace();
    }
  };

  const py::object owner_;
  const std::shared_ptr<Sink> sink_;
  const std::shared_ptr<CallHeaders> headers_;
  const std::string* const name_;
  bool may_write_;
  const bool counts_first_write_;
  const py::object otherwise_;
};

}  // namespace

void bind_api_function(py::module_& m) {
  py::class_<Sink, std::shared_ptr<Sink>>(m, "Sink");
  py::class_<ApiFunction>(m, "ApiFunction")
      .def(py::init<std::shared_ptr<Sink>, py::object, std::shared_ptr<CallHeaders>, std::string,
                    bool, bool, py::object>())
      .def("__call__", &ApiFunction::operator());
  m.def("finish_gradients", &finish_gradients, py::call_guard<py::gil_scoped_release>());
}

}  // namespace op_tools
