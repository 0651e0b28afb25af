// What a worker's /readiness says before it has loaded, to those who start workers as well.
#ifndef SERVICES_BATON_LOADING_H_
#define SERVICES_BATON_LOADING_H_

namespace baton {

inline constexpr char kLoadingText[] = "loading or stopping";

}  // namespace baton

#endif  // SERVICES_BATON_LOADING_H_
