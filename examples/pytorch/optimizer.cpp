// SPDX-License-Identifier: Apache-2.0

// One of terse's optimizers as a class of Python's. Which one is the first line below: any composition will do. Ranks are MPI's
// processes. terse_torch.py builds it and makes a torch.optim.Optimizer of it.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/extension.h>

#include "terse/checkpoint/checkpoint.hpp"
#include "terse/interop/libtorch.hpp"
#include "terse/terse.hpp"
#include "terse/transport/mpi.hpp"

namespace {

using Recipe = terse::OneBitAdam<terse::Sign, terse::FrozenVariance, terse::Ring>;

namespace py = pybind11;
using Named = std::vector<std::pair<std::string, torch::Tensor>>;

/// MPI from the import on; the interpreter's end is MPI's.
terse::Mpi& world() {
  static boost::mpi::environment environment(boost::mpi::threading::funneled, /*abort_on_exception=*/false);
  static terse::Mpi transport;
  return transport;
}

/// What a FlatModule is made of. Python keeps the same tensors. A FlatModule may lie on a GPU, and this optimizer steps on the
/// host.
std::unique_ptr<torch::nn::Module> module_of(const Named& parameters) {
  auto module = std::make_unique<torch::nn::Module>();
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad() && !tensor.device().is_cpu())
      throw terse::usage_error(
          "parameter '" + name + "' lies on " + tensor.device().str() +
          ", but this optimizer steps on the CPU: move the model there, model.cpu(), before");
    std::string plain = name;  // a dot would be a submodule's
    std::replace(plain.begin(), plain.end(), '.', '/');
    module->register_parameter(plain, tensor, tensor.requires_grad());
  }
  return module;
}

class PythonOptimizer {
 public:
  PythonOptimizer(const Named& parameters, float learning_rate, float weight_decay, std::uint64_t freeze_step)
      : module_(module_of(parameters)),
        flat_(*module_,
              [](terse::Segment& segment) {
                segment.compress = segment.shape.size() > 1;  // vectors in full precision, and without decay
                segment.weight_decay = segment.shape.size() > 1 ? 1.0F : 0.0F;
              }),
        optimizer_(Recipe{.learning_rate = learning_rate,
                          .weight_decay = weight_decay,
                          .preconditioner = {.freeze = terse::AtStep{freeze_step}}},
                   world(), flat_.layout()) {
    terse::broadcast(world(), values());  // all ranks start from rank 0's
  }

  /// One step on the mean of all ranks' gradients; returns the bytes that this rank has sent.
  std::uint64_t step(float learning_rate, float gradient_scale) {
    flat_.check_gradients();
    optimizer_.learning_rate(learning_rate);
    return optimizer_.step(values(), {flat_.gradients(), flat_.size()}, gradient_scale).bytes_sent;
  }
  void zero_grad() { flat_.zero_gradients(); }
  bool full_precision() const { return optimizer_.full_precision(); }
  void save(const std::string& file) { terse::checkpoint::save(file, optimizer_, values()); }
  void load(const std::string& file) { terse::checkpoint::load(file, optimizer_, values()); }

 private:
  terse::view<float> values() { return {flat_.parameters(), flat_.size()}; }

  std::unique_ptr<torch::nn::Module> module_;
  terse::interop::FlatModule flat_;
  terse::Optimizer<Recipe, terse::Mpi> optimizer_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  const auto alone = py::call_guard<py::gil_scoped_release>();  // waits for other ranks
  py::class_<PythonOptimizer>(module, "Optimizer")
      .def(py::init<const Named&, float, float, std::uint64_t>(), py::arg("named_parameters"),
           py::arg("learning_rate"), py::arg("weight_decay"), py::arg("freeze_step"))
      .def("step", &PythonOptimizer::step, py::arg("learning_rate"), py::arg("gradient_scale") = 1.0F, alone)
      .def("zero_grad", &PythonOptimizer::zero_grad)
      .def("full_precision", &PythonOptimizer::full_precision)
      .def("save", &PythonOptimizer::save, alone)
      .def("load", &PythonOptimizer::load, alone);
  module.def("rank", [] { return world().rank(); });
  module.def("size", [] { return world().size(); });
  module.def(
      "mean", [](double value) { return terse::mean(world(), value); }, alone);
}
