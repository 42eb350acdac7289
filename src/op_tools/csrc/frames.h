// Where a thread is in Python, told without an object for each frame.
#pragma once
#include <Python.h>
#include <frameobject.h>

#include <cstdint>

namespace op_tools {

// A frame of Python's: its code, borrowed, and the place in it.
struct Frame {
  PyCodeObject* code;
  int instruction;

  int line() const { return PyCode_Addr2Line(code, instruction); }
};

// By what Python says to everyone: it makes an object of each frame.
template <class Visit>
void each_told_frame(Visit visit) {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  bool on = true;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    on = on && visit(Frame{code, PyFrame_GetLasti(frame)});
    Py_DECREF(code);  // the frame holds it
    PyFrameObject* back = on ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
}

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
// The frames themselves, as internal/pycore_frame.h of CPython has them.
struct OwnFrame {
#if PY_VERSION_HEX >= 0x030C0000
  PyCodeObject* code;
  OwnFrame* previous;
  PyObject *function, *globals, *builtins, *locals;
  PyFrameObject* object;
  _Py_CODEUNIT* at;
  int stacktop;
  uint16_t return_offset;
  char owner;
#else
  PyObject *function, *globals, *builtins, *locals;
  PyCodeObject* code;
  PyFrameObject* object;
  OwnFrame* previous;
  _Py_CODEUNIT* at;
  int stacktop;
  bool is_entry;
  char owner;
#endif

  static constexpr char kGenerator = 1, kCode = 3;  // who owns it; the last: C, it is no function's

  int place() const { return int(at - reinterpret_cast<_Py_CODEUNIT*>(code->co_code_adaptive)); }
  bool complete() const { return owner != kCode && (owner == kGenerator || place() >= code->_co_firsttraceable); }
};

// Of the thread that asks, which stands still meanwhile: it needs no GIL. Without those of code that `skip` says true to.
template <class Skip, class Visit>
void each_own_frame(const PyThreadState* own, Skip skip, Visit visit) {
  const _PyCFrame* now = own->cframe;
  for (auto* frame = reinterpret_cast<const OwnFrame*>(now->current_frame); frame != nullptr; frame = frame->previous) {
    if (frame->owner == OwnFrame::kCode || skip(frame->code)) continue;
    if (frame->complete() && !visit(Frame{frame->code, frame->place() * int(sizeof(_Py_CODEUNIT))})) return;
  }
}

template <class Visit>
void each_own_frame(const PyThreadState* own, Visit visit) {
  each_own_frame(own, [](const PyCodeObject*) { return false; }, visit);
}

// Whether they are what this header takes them for: Python says the same. Under the GIL.
inline bool frames_are_known() {
  Frame found[16];
  int count = 0, same = 0;
  each_told_frame([&](Frame frame) { return found[count++] = frame, count < 16; });
  each_own_frame(PyThreadState_Get(), [&](Frame frame) {
    const bool equal = same < count && frame.code == found[same].code && frame.instruction == found[same].instruction;
    same += equal;
    return equal && same < count;
  });
  return same == count;
}

// Innermost first, until `visit` says false. Under the GIL.
template <class Visit>
void each_frame(Visit visit) {
  static const bool known = frames_are_known();
  if (known) each_own_frame(PyThreadState_Get(), visit);
  else each_told_frame(visit);
}
#else
template <class Skip, class Visit>
void each_own_frame(const PyThreadState*, Skip, Visit) {}

inline bool frames_are_known() { return false; }

template <class Visit>
void each_frame(Visit visit) {
  each_told_frame(visit);
}
#endif

}  // namespace op_tools
