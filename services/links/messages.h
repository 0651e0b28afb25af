// Converts links' messages (proto/baton/v1/prefill.proto) to and from the cores' plain values. Form
// and range of received ones are checked here. Errors are INVALID_ARGUMENT that name the field.
#ifndef SERVICES_LINKS_MESSAGES_H_
#define SERVICES_LINKS_MESSAGES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/collective/rendezvous.h"
#include "proto/baton/v1/prefill.pb.h"
#include "services/links/core/hello.h"

namespace baton::links {

v1::LinkHello ToProto(const Hello& hello, const ChainPlace& receiver, int page_count);
// Checks that the sender believes of this member what is true. More than `max_plan_tokens` are
// refused: buffers are allocated by it.
absl::StatusOr<Hello> FromProto(const v1::LinkHello& proto, const ChainPlace& place,
                                int max_plan_tokens);

v1::GroupEntry ToProto(const Rendezvous::Entry& entry);
absl::StatusOr<Rendezvous::Entry> FromProto(const v1::GroupEntry& proto);
v1::GroupVerdict VerdictToProto(const absl::Status& verdict);
absl::StatusOr<absl::Status> VerdictFromProto(const v1::GroupVerdict& proto);

}  // namespace baton::links

#endif  // SERVICES_LINKS_MESSAGES_H_
