// A loaded weight matrix that multiplies activations, whichever backend holds it.
#ifndef COMMON_ENGINE_LINEAR_H_
#define COMMON_ENGINE_LINEAR_H_

#include <functional>
#include <memory>

namespace baton {

class Linear {
 public:
  Linear(int outputs, int inputs) : outputs_(outputs), inputs_(inputs) {}
  virtual ~Linear() = default;
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }

  // While loading: rows [row_begin, row_begin + row_count) of [outputs, inputs].
  virtual void SetRows(const float* rows, int row_begin, int row_count) = 0;

  // y[r] = W x[r] for `rows` rows; x is [rows, inputs], y is [rows, outputs].
  virtual void Apply(const float* x, int rows, float* y) const = 0;

 private:
  const int outputs_;
  const int inputs_;
};

// Makes an empty Linear of the chosen backend.
using LinearFactory = std::function<std::unique_ptr<Linear>(int outputs, int inputs)>;

}  // namespace baton

#endif  // COMMON_ENGINE_LINEAR_H_
