// A template in the part of Jinja that chat templates use, with the settings of transformers: what
// it renders is what Python's jinja2 renders there, byte for byte.
#ifndef COMMON_TOKENIZER_CHAT_JINJA_TEMPLATE_H_
#define COMMON_TOKENIZER_CHAT_JINJA_TEMPLATE_H_

#include <ctime>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/ast.h"
#include "common/tokenizer/chat/jinja/budget.h"
#include "common/tokenizer/chat/jinja/value.h"

namespace baton::jinja {

// Immutable; any thread.
class Template {
 public:
  // InvalidArgument ("line 3: ...") for a source that is no template.
  static absl::StatusOr<Template> Parse(std::string_view source);

  // `now` is what strftime_now shows. InvalidArgument for what the template can't do with these
  // variables ("line 3: ..."), for what it refuses itself by raise_exception (its words), and for
  // a limit that it passes.
  absl::StatusOr<Text> Render(const Dict& variables, const std::tm& now,
                              const RenderLimits& limits = {}) const;

  // Whether it visits the content of messages part by part, and whether it asks if something is a
  // string: together they say which of the two forms of a message's content it takes.
  bool VisitsContent() const;
  bool AsksForString() const;

 private:
  explicit Template(std::vector<Statement> body) : body_(std::move(body)) {}

  std::vector<Statement> body_;
};

}  // namespace baton::jinja

#endif  // COMMON_TOKENIZER_CHAT_JINJA_TEMPLATE_H_
