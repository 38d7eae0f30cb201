// A lean runtime for libraries that AOTInductor generates (torch 2.13).
//
// PyTorch's own (model_base.h, model_container.h) can hold several models, own weights and fold constants; its
// templates, and the std::regex in them, take g++ most of a compile. A program of cstorch has no constants and one
// instance, so the class below has what generated code touches and no more. The entry points are those that
// AOTIModelContainerRunner looks up; the ones about constants are never called.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/device_utils.h>
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

[[maybe_unused]] inline int64_t align(int64_t nbytes) { return (nbytes + 64 - 1) & -64; }

namespace torch::aot_inductor {

using ConstantMap = std::unordered_map<std::string, RAIIAtenTensorHandle>;

class AOTInductorModelKernelsBase {
 public:
  virtual ~AOTInductorModelKernelsBase() = default;
};

template <typename Model>
class AOTInductorModelBase {
 public:
  AOTInductorModelBase(size_t inputs, size_t outputs, size_t, const std::string&, std::optional<std::string>, bool)
      : inputs_info_(inputs), outputs_info_(outputs) {}
  size_t num_inputs() const { return inputs_info_.size(); }
  size_t num_outputs() const { return outputs_info_.size(); }
  void update_constants_map(std::shared_ptr<ConstantMap>) {}
  void update_constants_array(std::shared_ptr<std::vector<ConstantHandle>>) {}

 protected:
  struct ParamInfo {
    const char* name = nullptr;
  };
  std::vector<ParamInfo> inputs_info_;
  std::vector<ParamInfo> outputs_info_;
  std::string in_spec_;
  std::string out_spec_;
  int32_t device_type_ = aoti_torch_device_type_cpu();
  int32_t device_idx_ = -1;
};

class AOTInductorModel : public AOTInductorModelBase<AOTInductorModel> {
 public:
  AOTInductorModel(std::shared_ptr<ConstantMap>, std::shared_ptr<std::vector<ConstantHandle>>, const std::string&,
                   std::optional<std::string>);
  std::unordered_map<std::string, AtenTensorHandle> const_run_impl(DeviceStreamType, AOTIProxyExecutorHandle,
                                                                   bool initialization = false);
  void _const_run_impl(std::vector<AtenTensorHandle>&, DeviceStreamType, AOTIProxyExecutorHandle);
  void run_impl(AtenTensorHandle* inputs, AtenTensorHandle* outputs, DeviceStreamType, AOTIProxyExecutorHandle);

 private:
  std::unique_ptr<AOTInductorModelKernelsBase> kernels_;
};

}  // namespace torch::aot_inductor

#define CSTORCH_CONTAINER AOTInductorModelContainerHandle

static thread_local std::string cstorch_last_error;

extern "C" {

AOTIRuntimeError AOTInductorGetLastError(const char** message) {
  *message = cstorch_last_error.c_str();
  return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerCreateWithDevice(CSTORCH_CONTAINER* made, size_t, const char*, const char*) {
  using namespace torch::aot_inductor;
  try {
    *made = reinterpret_cast<CSTORCH_CONTAINER>(new AOTInductorModel(nullptr, nullptr, "cpu", std::nullopt));
    return AOTI_RUNTIME_SUCCESS;
  } catch (const std::exception& error) {
    cstorch_last_error = error.what();
    return AOTI_RUNTIME_FAILURE;
  }
}

AOTIRuntimeError AOTInductorModelContainerDelete(CSTORCH_CONTAINER container) {
  delete reinterpret_cast<torch::aot_inductor::AOTInductorModel*>(container);
  return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerRun(CSTORCH_CONTAINER container, AtenTensorHandle* inputs, size_t,
                                              AtenTensorHandle* outputs, size_t, AOTInductorStreamHandle,
                                              AOTIProxyExecutorHandle) {
  const bool grad = aoti_torch_grad_mode_is_enabled();
  aoti_torch_grad_mode_set_enabled(false);
  AOTIRuntimeError result = AOTI_RUNTIME_SUCCESS;
  try {
    reinterpret_cast<torch::aot_inductor::AOTInductorModel*>(container)->run_impl(inputs, outputs, nullptr, nullptr);
  } catch (const std::exception& error) {
    cstorch_last_error = error.what();
    result = AOTI_RUNTIME_FAILURE;
  }
  aoti_torch_grad_mode_set_enabled(grad);
  return result;
}

AOTIRuntimeError AOTInductorModelContainerRunSingleThreaded(CSTORCH_CONTAINER container, AtenTensorHandle* inputs,
                                                            size_t num_inputs, AtenTensorHandle* outputs,
                                                            size_t num_outputs, AOTInductorStreamHandle stream,
                                                            AOTIProxyExecutorHandle proxy) {
  return AOTInductorModelContainerRun(container, inputs, num_inputs, outputs, num_outputs, stream, proxy);
}

AOTIRuntimeError AOTInductorModelContainerGetNumInputs(CSTORCH_CONTAINER container, size_t* count) {
  *count = reinterpret_cast<torch::aot_inductor::AOTInductorModel*>(container)->num_inputs();
  return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerGetNumOutputs(CSTORCH_CONTAINER container, size_t* count) {
  *count = reinterpret_cast<torch::aot_inductor::AOTInductorModel*>(container)->num_outputs();
  return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerGetNumConstants(CSTORCH_CONTAINER, size_t* count) {
  *count = 0;
  return AOTI_RUNTIME_SUCCESS;
}

AOTIRuntimeError AOTInductorModelContainerGetCallSpec(CSTORCH_CONTAINER, const char** in, const char** out) {
  *in = *out = "";
  return AOTI_RUNTIME_SUCCESS;
}

#define CSTORCH_ABSENT(name, ...) \
  AOTIRuntimeError name(CSTORCH_CONTAINER, ##__VA_ARGS__) { return AOTI_RUNTIME_FAILURE; }

CSTORCH_ABSENT(AOTInductorModelContainerGetConstantName, size_t, const char**)
CSTORCH_ABSENT(AOTInductorModelContainerGetConstantOriginalFQN, size_t, const char**)
CSTORCH_ABSENT(AOTInductorModelContainerGetConstantDtype, size_t, int32_t*)
CSTORCH_ABSENT(AOTInductorModelContainerExtractConstantsMap, AOTInductorConstantMapHandle, bool)
CSTORCH_ABSENT(AOTInductorModelContainerUpdateUserManagedConstantBuffer, AOTInductorConstantMapHandle, bool, bool)
CSTORCH_ABSENT(AOTInductorModelContainerUpdateConstantBuffer, AOTInductorConstantMapHandle, bool, bool)
CSTORCH_ABSENT(AOTInductorModelContainerUpdateConstantBufferFromCpu, AOTInductorConstantMapHandle, bool, bool)
CSTORCH_ABSENT(AOTInductorModelContainerUpdateInactiveConstantBuffer, AOTInductorConstantMapHandle)
CSTORCH_ABSENT(AOTInductorModelContainerFreeInactiveConstantBuffer)
CSTORCH_ABSENT(AOTInductorModelContainerRunConstantFolding, bool, AOTInductorStreamHandle, AOTIProxyExecutorHandle)
CSTORCH_ABSENT(AOTInductorModelContainerSwapConstantBuffer)
CSTORCH_ABSENT(AOTInductorModelContainerGetConstantsBlobSize, uint64_t*)
CSTORCH_ABSENT(AOTInductorModelUpdateConstantsFromBlob, const uint8_t*)

}  // extern "C"
