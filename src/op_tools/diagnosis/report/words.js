// The words of the page in Chinese; a text that is not here is shown as it is.

let language = "en";

const ZH = {
  "problem": "问题", "warning": "注意", "OK": "正常", "info": "信息",
  "Where": "位置", "Evidence": "证据", "Workaround": "规避办法", "Next": "下一步",
  "command": "命令", "device": "设备", "vendor": "厂商", "host": "主机", "date": "日期", "duration": "耗时", "exit code": "退出码", "status": "状态", "message": "信息", "reproduce": "复现", "check": "检查", "gap": "已知缺口", "grade": "等级", "purpose": "目的", "operators on the CPU": "移到 CPU 的算子", "outcome": "结果", "reason": "原因", "verdict": "结论",
  "not recorded": "没有记录", "copy": "复制", "copied": "已复制", "Copy the command": "复制命令",
  "calls and results": "调用与结果", "operators": "算子数", "cases": "用例数", "wrong": "错误", "not finite": "非有限值", "device time": "设备时间", "steps": "步数", "right": "正确", "skipped": "跳过",
  "Timeline": "时间线", "As it was measured.": "按实测时间排列。", "One call after the other: there was no clock.": "没有计时，按调用顺序排列。",
  "Calls one after the other, as long as they took; a trace (--trace) shows when they ran.": "按调用顺序和耗时排列；实际时刻见 --trace。",
  "Drag to move, Ctrl and the wheel to zoom, a click shows the call.": "拖动平移，Ctrl+滚轮缩放，单击查看调用。",
  "All": "全部", "Zoom in": "放大", "Zoom out": "缩小", "Show all": "显示全部", "forward": "前向", "backward": "反向", "modules": "模块", "wrong or not finite": "错误或非有限值", "call": "调用", "rank": "rank",
  "Operators, the worst first": "算子（最差的在前）", "Operators of both runs": "两次运行的算子",
  "The most wrong, then the slowest. A column's name sorts by it; an operator's shows its calls.": "先按错误数、再按耗时排列。点列名排序，点算子查看它的调用。",
  "The slowest first. A column's name sorts by it; an operator's shows its calls.": "按耗时排列。点列名排序，点算子查看它的调用。",
  "operator": "算子", "calls": "调用数", "relative error": "相对误差", "total ms": "总耗时 ms", "share": "占比", "mean ms": "平均 ms", "results": "结果大小",
  "Modules": "模块树", "The worst error of each module and of those inside it. A name shows the calls.": "每个模块及其子模块的最大误差。点名称查看调用。",
  "Calls of each module and of those inside it. A name shows the calls.": "每个模块及其子模块的调用。点名称查看调用。",
  "module": "模块", "Expand all": "全部展开", "Collapse": "折叠", "(outside of modules)": "（模块之外）", "error forward": "前向误差", "error backward": "反向误差", "error": "误差", "time": "耗时",
  "Modules by step": "模块 × 步", "A cell is a module in a step; a click shows its calls.": "每格是一个模块在一步中的值，单击查看调用。",
  "error / tolerance": "误差 / 容差", "largest value": "最大绝对值", "ms": "ms", "Shown": "显示", "within the tolerance": "容差之内", "above the tolerance": "超出容差", "{0} more modules": "另有 {0} 个模块",
  "Distribution of the errors": "误差分布", "How many results have an error of each size, as multiples of the tolerance. A bar shows them.": "各量级误差的结果数（以容差为单位）。点柱形查看。",
  "Along the network": "沿网络的变化", "Steps": "训练步", "Memory": "内存", "Errors along the run": "沿运行的误差", "The largest value along the run": "沿运行的最大绝对值",
  "How far the two runs drift apart": "两次运行的偏离", "Drift from the record": "与记录的偏离", "Loss": "loss", "Loss of the device and of the reference": "设备与参考的 loss",
  "Time of a step": "每步耗时", "The largest of the recorded gradients": "最大梯度", "Memory of the process": "进程内存",
  "on the device": "设备上", "reference: every operator on the CPU": "参考：全部算子在 CPU 上", "with the workaround": "使用规避办法",
  "tolerance": "容差", "times the tolerance": "倍容差", "log axis": "对数轴", "{0} along the bottom; {1}.": "横轴：{0}；纵轴：{1}。", "error {0} times the tolerance": "误差为容差的 {0} 倍",
  "results, in the order of the run": "结果，按运行顺序", "calls, in their order": "调用，按顺序", "losses, in the order of the program": "loss，按程序顺序", "layers": "层", "relative": "相对值", "modules, in the order of the run": "模块，按运行顺序", "largest": "最大", "process": "进程",
  "Memory of results, by module": "各模块结果的内存", "Bytes of the results of one step, added up call by call. What the program keeps is less.": "一步内各调用结果的字节数累加；程序实际保留的更少。", "in all": "合计", "other modules": "其他模块", "results in a step": "每步结果",
  "Operators by type": "算子 × 类型", "✓ right, ✗ wrong; the number is the worst error as a multiple of the tolerance.": "✓ 正确，✗ 错误；数字为最大误差与容差之比。", "How many calls; nothing was judged.": "调用数；没有比对。",
  "Grades of the conformance suite, and the worst error as a multiple of the tolerance.": "一致性测试的等级，以及最大误差与容差之比。", "Blue: every wrong case is a known gap of the vendor.": "蓝色：错误用例都是厂商已知的缺口。",
  "Roofline": "Roofline", "operations per byte": "每字节运算数",
  "The dashed roof is the best of this run: {0} GFLOP/s, {1} GB/s; what lies far below it is held by something else. A dot's size is its time.": "虚线是本次运行的最好值：{0} GFLOP/s，{1} GB/s；远低于它的点受其他因素限制。点的大小表示耗时。",
  "Calls": "调用", "Filter the calls": "筛选调用", "part": "部分", "state": "状态", "direction": "方向", "step": "步", "type": "类型", "shape": "形状", "line": "代码行", "run": "运行", "note": "说明",
  "Filter: linear backward step:3 ms>0.5 state:wrong in:blocks.0 -embedding": "筛选：linear backward step:3 ms>0.5 state:wrong in:blocks.0 -embedding",
  "Wrong": "错误", "Not finite": "非有限值", "Backward": "反向", "{0} of {1}": "{0} / {1}", "CSV": "CSV", "Save as CSV": "存为 CSV",
  "Sources": "数据来源", "Files of this page": "本页数据来源", "Self-contained page.": "单文件页面，无需网络。", "Keys: / filter, j k next and previous call, w a s d timeline.": "快捷键：/ 筛选，j k 上下一个调用，w a s d 时间线。",
  "open in an editor": "在编辑器中打开", "Close": "关闭", "Light or dark": "浅色或深色", "Reading …": "读取中……", "This page could not be read: {0}": "无法读取本页：{0}",
  "Failures": "失败用例", "Runs of the bisection": "二分的各次运行", "From the symptom up to the origin": "从症状到源头", "Collectives": "集合通信", "The last collectives": "最后的集合通信",
};

let sentences = {}; // of the tools, in Chinese by their English text

function t(text, ...values) {
  const found = language === "zh" ? ZH[text] ?? text : text;
  return found.replace(/\{(\d)\}/g, (_, i) => values[Number(i)]);
}

function sentence(text) { return language === "zh" ? sentences[text] ?? ZH[text] ?? text : text; }
