// What instructions that multiply bfloat16 do at best, registers only: the limits that a product's
// kernel could have, for the benchmark. Nothing that computes a model uses them.
#ifndef COMMON_ENGINE_TESTING_INSTRUCTION_PEAKS_H_
#define COMMON_ENGINE_TESTING_INSTRUCTION_PEAKS_H_

namespace baton {

struct InstructionPeak {
  const char* name;
  bool (*available)();  // On this CPU, under this kernel.
  // Runs it, and returns the floating-point operations. Any thread.
  double (*run)(int rounds);
};

extern const InstructionPeak kAvx512Bf16Peak;  // vdpbf16ps
extern const InstructionPeak kAmxBf16Peak;     // tdpbf16ps

}  // namespace baton

#endif  // COMMON_ENGINE_TESTING_INSTRUCTION_PEAKS_H_
