/* SPDX-License-Identifier: Apache-2.0 */
// The sink behind OpCapture(mode="statistics"): one line of JSON for each call, and one for its
// gradients.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <string>

#include "../autograd/gradient_hooks.h"
#include "../call/call_view.h"
#include "../tensors/device_reducer.h"
#include "call_log.h"
#include "fork_safe_condition.h"
#include "line_formatter.h"
#include "producers.h"

namespace op_tools {

class StatisticsSink : public Sink, public std::enable_shared_from_this<StatisticsSink> {
 public:
  // described(tensor) -> JSON of a tensor that is out of reach here; window(type, index): see
  // tensors/host_view.h; starter and launcher: see tensors/device_reducer.h; flush() is called when
  // `limit` lines are pending; problem(operator or None, text) reports an error. `all_inputs`:
  // inputs are read even if an earlier line has their values. `nonfinite_only`: see
  // line_formatter.h.
  StatisticsSink(bool hash_only, bool all_inputs, bool nonfinite_only, size_t limit,
                 py::function described, py::function window, py::function starter,
                 py::function launcher, py::function flush, py::function problem);
  ~StatisticsSink() override;

  bool marks_infinite_arguments() const override { return nonfinite_only_; }
  bool accepts(const at::Tensor& tensor) override { return way_of(tensor) != Way::none; }
  bool reads_on_host(const at::Tensor& tensor) override { return way_of(tensor) == Way::host; }
  void enter(CallView& call) override;
  void exit(CallView& call, const TensorList& outputs) override;
  void follow(const CallView& call, CallRegion& region, size_t outputs,
              std::shared_ptr<void> owner) override;
  void report(PyObject* op, const char* error) override;

  std::string text(const at::Tensor& tensor);  // of one tensor, for a line of Python's; it may have
                                               // a mark for statistics that are pending
  void add(std::string_view line);
  py::bytes take(
      bool everything);  // the lines whose statistics are there, or all, which waits for the device

  // For a thread that writes lines to a file until `end_work`: how many bytes it wrote; 0 at the
  // end.
  size_t work(int file);
  void stop_work();
  void end_work();

  std::atomic<size_t> limit;

 private:
  friend class StatisticsGradients;
  enum class Way : uint8_t { none, python, host, device };
  using Batch = DeviceReducer::Batch;

  Way way_of(const at::Tensor& tensor);
  void measure(CallLog& to, Batch& batch, const at::Tensor& tensor);
  enum class Read : uint8_t { before_call, after_call, not_at_all };
  void put_inputs(CallView& call, Batch& batch, Read read);
  size_t base_of(const CallView& call, const at::Tensor& output) const;
  void put_view(CallView& call, const at::Tensor& output, size_t place);
  bool put_reference(CallLog& to, const at::Tensor& tensor);
  void append(const CallLog& line);
  void added();
  void format(bool everything);
  std::string marked_text(std::string_view log);

  const Reads reads_;
  const bool all_inputs_, nonfinite_only_;
  py::function described_, flush_, problem_;
  HostView host_;
  DeviceReducer reducer_;
  Producers producers_;

  std::mutex lines_lock_;  // of what follows
  CallLog lines_;
  size_t count_ = 0;  // lines since the last flush
  bool working_ = false, ready_ = false, ending_ = false;
  Condition wake_, room_;

  std::mutex text_lock_;  // of what follows; locked before the other
  std::deque<std::pair<std::string, int64_t>>
      logs_;  // with the batches that have to be finished first
  LineFormatter formatter_;
};

void bind_statistics_sink(py::module_& m);

}  // namespace op_tools
