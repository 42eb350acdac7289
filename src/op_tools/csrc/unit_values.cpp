// Numbers of the host's tensors, read past a function mode: what an optimizer asks of each parameter's count of steps.
#include <pybind11/pybind11.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace op_tools {
namespace {

bool is_the_only_mode(PyObject* mode) {
  using Modes = at::impl::PythonTorchFunctionTLS;
  return Modes::stack_len() == 1 && Modes::get_stack_at(0)->ptr(getPyInterpreter()) == mode;
}

// number_of(mode, value) -> a float; None where another mode is to see it, or it is none of the host's.
PyObject* number_of(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count == 2 && THPVariable_CheckExact(args[1]) && is_the_only_mode(args[0])) {
    const at::Tensor& tensor = THPVariable_Unpack(args[1]);
    if (tensor.is_cpu() && tensor.numel() == 1 && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble)) try {
        return PyFloat_FromDouble(tensor.item().toDouble());
      } catch (std::exception&) {  // Python says it better
      }
  }
  Py_RETURN_NONE;
}

PyMethodDef method{"number_of", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(number_of)), METH_FASTCALL, nullptr};

}  // namespace

void bind_values(py::module_& m) { m.attr("number_of") = py::reinterpret_steal<py::object>(PyCFunction_New(&method, nullptr)); }

}  // namespace op_tools
