// SPDX-License-Identifier: Apache-2.0
// The Python module terse_torch._native: methods by name over process groups, on arenas that Python keeps.

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "method.hpp"
#include "terse/laws/transport.hpp"
#include "terse/transport/c10d.hpp"

namespace terse_torch {

std::map<std::string, Make>& methods() {
  static std::map<std::string, Make> table;
  return table;
}

namespace {

namespace py = pybind11;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Arenas come as addresses: Python holds the tensors, and has checked them.
float* floats_at(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

/// A channel and the method that steps over it.
class Stepper {
 public:
  Stepper(const Group& group, std::int64_t deadline_ms, Make make, const Settings& settings,
          const terse::Layout& layout, const terse::Options& options, std::uintptr_t stream)
      : transport_(terse::C10d(group, std::chrono::milliseconds(deadline_ms))),
        method_(make(settings, transport_, layout, options, stream)) {}

  Method& method() { return *method_; }
  double mean(double value) { return terse::mean(transport_, value); }
  // Of values on the host.
  void mean_of(float* values) { terse::mean(transport_, view(values)); }
  void broadcast(float* values) { terse::broadcast(transport_, view(values)); }

 private:
  terse::view<float> view(float* values) const { return {values, method_->layout().size()}; }

  terse::AnyTransport transport_;
  std::unique_ptr<Method> method_;
};

/// A channel's end may join threads of the group that want Python's lock.
struct WithoutLock {
  void operator()(Stepper* stepper) const {
    if (PyGILState_Check() != 0) {
      const py::gil_scoped_release release;
      delete stepper;
    } else {
      delete stepper;
    }
  }
};
using Held = std::unique_ptr<Stepper, WithoutLock>;

}  // namespace

}  // namespace terse_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace terse_torch;
  const auto alone = py::call_guard<py::gil_scoped_release>();  // waits for other ranks

  // A RuntimeError with `culprit`, the rank at fault or -1.
  static PyObject* const peer_error =
      PyErr_NewException("terse_torch.PeerError", PyExc_RuntimeError, nullptr);
  py::handle(peer_error).attr("culprit") = -1;
  module.attr("PeerError") = py::handle(peer_error);
  static PyObject* const mismatch_error =
      PyErr_NewException("terse_torch.MismatchError", PyExc_RuntimeError, nullptr);
  module.attr("MismatchError") = py::handle(mismatch_error);
  py::register_exception_translator([](std::exception_ptr failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const terse::peer_error& error) {
      const py::object raised = py::handle(peer_error)(error.what());
      raised.attr("culprit") = error.culprit();
      PyErr_SetObject(peer_error, raised.ptr());
    } catch (const terse::mismatch_error& error) {
      PyErr_SetString(mismatch_error, error.what());
    } catch (const terse::usage_error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const terse::error& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  });

  py::class_<terse::Layout>(module, "Layout")
      .def(py::init<>())
      .def(
          "add",
          [](terse::Layout& layout, std::string name, std::vector<std::int64_t> shape, float learning_rate,
             float weight_decay, bool compress, bool hidden) {
            layout.add({.name = std::move(name),
                        .shape = std::move(shape),
                        .learning_rate_scale = learning_rate,
                        .weight_decay = weight_decay,
                        .compress = compress,
                        .hidden = hidden});
          },
          py::arg("name"), py::arg("shape"), py::arg("learning_rate_scale") = 1.0F,
          py::arg("weight_decay") = 1.0F, py::arg("compress") = true, py::arg("hidden") = false)
      .def_property_readonly("size", &terse::Layout::size)
      .def_property_readonly("offsets", [](const terse::Layout& layout) {
        std::vector<terse::index_t> offsets;
        for (const terse::Segment& segment : layout.segments()) offsets.push_back(segment.offset);
        return offsets;
      });

  py::class_<terse::StepResult>(module, "StepResult")
      .def_readonly("applied", &terse::StepResult::applied)
      .def_readonly("bytes_sent", &terse::StepResult::bytes_sent)
      .def_readonly("compressed", &terse::StepResult::compressed)
      .def("__repr__", [](const terse::StepResult& result) {
        const auto word = [](bool value) { return value ? "True" : "False"; };
        return std::string("StepResult(applied=") + word(result.applied) +
               ", compressed=" + word(result.compressed) +
               ", bytes_sent=" + std::to_string(result.bytes_sent) + ")";
      });

  py::class_<Stepper, Held>(module, "Stepper")
      .def("rescale", [](Stepper& self, const std::string& segment, float learning_rate,
                         float weight_decay) { self.method().rescale(segment, learning_rate, weight_decay); })
      .def(
          "begin",
          [](Stepper& self, std::uintptr_t x, std::uintptr_t g, float rate, float scale) {
            self.method().learning_rate(rate);
            self.method().begin(floats_at(x), floats_at(g), scale);
          },
          alone)
      .def(
          "ready", [](Stepper& self, std::int64_t segment) { self.method().ready(segment); }, alone)
      .def(
          "step",
          [](Stepper& self, std::uintptr_t x, std::uintptr_t g, float rate, float scale) {
            self.method().learning_rate(rate);
            return self.method().step(floats_at(x), floats_at(g), scale);
          },
          alone)
      .def_property_readonly("steps", [](Stepper& self) { return self.method().steps(); })
      .def_property_readonly("full_precision", [](Stepper& self) { return self.method().full_precision(); })
      .def(
          "broadcast", [](Stepper& self, std::uintptr_t x) { self.broadcast(floats_at(x)); }, alone)
      .def(
          "mean_of", [](Stepper& self, std::uintptr_t x) { self.mean_of(floats_at(x)); }, alone)
      .def("mean", &Stepper::mean, alone)
      .def(
          "save",
          [](Stepper& self, const std::string& file, std::uintptr_t x) {
            self.method().save(file, floats_at(x));
          },
          alone)
      .def(
          "load",
          [](Stepper& self, const std::string& file, std::uintptr_t x) {
            self.method().load(file, floats_at(x));
          },
          alone)
      .def(
          "carry_over",
          [](Stepper& self, Stepper& before, std::uintptr_t x) {
            self.method().carry_over(before.method(), floats_at(x));
          },
          alone)
      .def(
          "join", [](Stepper& self, std::uintptr_t x) { self.method().join(floats_at(x)); }, alone);

  module.def(
      "make",
      [](const std::string& name, std::map<std::string, double> settings, const Group& group,
         std::int64_t deadline_ms, const terse::Layout& layout, std::uint64_t seed, bool skip_non_finite,
         float clip_norm, std::int64_t slice_bytes, std::uint64_t compare_every, float most_masked,
         std::uintptr_t stream) {
        const auto found = methods().find(name);
        if (found == methods().end()) throw terse::usage_error("this build of terse_torch has no " + name);
        return Held(new Stepper(group, deadline_ms, found->second, Settings(std::move(settings)), layout,
                                terse::Options{.seed = seed,
                                               .on_non_finite = skip_non_finite ? terse::NonFinite::skip
                                                                                : terse::NonFinite::throw_,
                                               .clip_norm = clip_norm,
                                               .slice_bytes = slice_bytes,
                                               .compare_every = compare_every,
                                               .most_masked = most_masked},
                                stream));
      },
      py::arg("name"), py::arg("settings"), py::arg("group"), py::arg("deadline_ms"), py::arg("layout"),
      py::arg("seed"), py::arg("skip_non_finite"), py::arg("clip_norm"), py::arg("slice_bytes"),
      py::arg("compare_every"), py::arg("most_masked") = 0.01F, py::arg("stream") = 0, alone);
  // What a unit of terse_torch.compile has, by its address.
  module.def("adopt", [](const std::string& name, std::uintptr_t make) {
    methods()[name] = reinterpret_cast<Make>(make);
  });
  module.def("methods", [] {
    std::vector<std::string> names;
    for (const auto& [name, make] : methods()) names.push_back(name);
    return names;
  });
  module.def(
      "check_transport",
      [](const Group& group) {
        terse::C10d transport(group);
        const terse::laws::Report report = terse::laws::check_transport(transport);
        return std::pair(static_cast<bool>(report), report.text());
      },
      py::arg("group"), alone);
}
