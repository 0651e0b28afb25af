#include "common/rpc/cluster_security.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/rpc/testing/test_authority.h"
#include "proto/baton/v1/cluster.grpc.pb.h"

namespace baton::rpc {
namespace {

using ::testing::HasSubstr;
using testing::TestAuthority;
using Security = std::shared_ptr<const ClusterSecurity>;

// Counts what comes through.
class Members final : public v1::Cluster::Service {
 public:
  grpc::Status Find(grpc::ServerContext* context, const v1::FindRequest* request,
                    v1::FindResponse*) override {
    ++calls;
    shows_token = context->client_metadata().contains("baton-cluster-token");
    const absl::Status caller =
        CheckCaller(*context, {PeerRole::kPrefill, request->instance().instance_id()});
    return {static_cast<grpc::StatusCode>(caller.code()), std::string(caller.message())};
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainResponse*) override {
    ++calls;
    return grpc::Status::OK;
  }

  std::atomic<int> calls{0};
  std::atomic<bool> shows_token{false};
};

class ClusterSecurityTest : public ::testing::Test {
 protected:
  ClusterSecurityTest()
      : directory_(::testing::TempDir() + "/security-" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    for (const char* part : {"/ours", "/theirs"}) {
      std::filesystem::create_directories(directory_ + part);
    }
    ours_ = std::make_unique<TestAuthority>(directory_ + "/ours");
    theirs_ = std::make_unique<TestAuthority>(directory_ + "/theirs");
  }

  static Security Load(const ClusterSecurityFiles& files, const PeerIdentity& self) {
    auto loaded = ClusterSecurity::Load(files, self);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *loaded : nullptr;
  }
  ClusterSecurityFiles Files(const TestAuthority::Files& own, const std::string& authority) {
    return {own.certificate, own.key, authority, token_};
  }
  // A process with a certificate of ours that names its role.
  Security Ours(PeerRole role, const std::string& instance = "") {
    const PeerIdentity self{role, instance};
    const std::string name = std::string(PeerRoleName(role)) + instance;
    return Load(Files(ours_->Issue(name, {IdentityUri(self)}), ours_->certificate()), self);
  }
  std::string WriteToken(const std::string& name, const std::string& text) {
    std::string path = directory_ + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }

  void Serve(const Security& security) {
    ServerOptions options;
    options.host = "127.0.0.1";
    if (security != nullptr) options.credentials = security->ForServer();
    auto running = StartServer(options, {&members_});
    ASSERT_TRUE(running.ok()) << running.status();
    running_ = *std::move(running);
  }
  ~ClusterSecurityTest() override {
    if (running_.server != nullptr) StopServer(*running_.server);
  }

  std::unique_ptr<v1::Cluster::Stub> Stub(const Security& security,
                                          PeerRole peer = PeerRole::kRouter) {
    return v1::Cluster::NewStub(OpenChannel("127.0.0.1:" + std::to_string(running_.port),
                                            {.security = security, .peers = {{peer, ""}}}));
  }
  static grpc::Status Find(v1::Cluster::Stub& stub, const std::string& instance = "p0") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::FindRequest request;
    request.mutable_instance()->set_instance_id(instance);
    v1::FindResponse response;
    return stub.Find(&context, request, &response);
  }
  grpc::Status Find(const Security& security, const std::string& instance = "p0") {
    return Find(*Stub(security), instance);
  }
  grpc::Status Drain(const Security& security) {
    grpc::ClientContext context;
    v1::DrainResponse response;
    return Stub(security)->Drain(&context, {}, &response);
  }

  const std::string directory_;
  std::string token_;
  std::unique_ptr<TestAuthority> ours_;
  std::unique_ptr<TestAuthority> theirs_;
  Members members_;
  RunningServer running_;
};

TEST_F(ClusterSecurityTest, EachRoleCallsWhatIsIts) {
  Serve(Ours(PeerRole::kRouter));
  const grpc::Status joined = Find(Ours(PeerRole::kPrefill));
  EXPECT_TRUE(joined.ok()) << joined.error_message();
  EXPECT_TRUE(Drain(Ours(PeerRole::kOperator)).ok());
  EXPECT_EQ(members_.calls, 2);

  const grpc::Status drain = Drain(Ours(PeerRole::kPrefill));
  EXPECT_EQ(drain.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(drain.error_message(), HasSubstr("baton://operator"));
  EXPECT_EQ(Find(Ours(PeerRole::kRouter)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(members_.calls, 2) << "a service heard of a call that it must not";
  // It may ask, but not as what it is not.
  EXPECT_EQ(Find(Ours(PeerRole::kDecode)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Find(Ours(PeerRole::kPrefill, "p0"), "p0").ok());
  EXPECT_EQ(Find(Ours(PeerRole::kPrefill, "p0"), "p1").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(ClusterSecurityTest, StrangersGetNowhere) {
  Serve(Ours(PeerRole::kRouter));
  const auto outside = [&](const TestAuthority::Files& own, const std::string& authority) {
    // Past the checks of an honest process.
    return Load({own.certificate, own.key, authority, ""}, {PeerRole::kPrefill, ""});
  };
  const std::vector<std::string> prefill = {"baton://prefill"};
  EXPECT_FALSE(Find(nullptr).ok()) << "no certificate";
  EXPECT_FALSE(Find(outside(theirs_->Issue("p", prefill), ours_->certificate())).ok())
      << "another authority";
  EXPECT_FALSE(Find(outside(ours_->Issue("p", prefill), theirs_->certificate())).ok())
      << "trusts another authority";
  // Over between its start and its call.
  const auto file = ours_->Issue("brief", prefill);
  const Security brief = outside(file, ours_->certificate());
  ours_->Issue("brief", prefill, -60);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  bool refused = false;
  while (!refused && std::chrono::steady_clock::now() < until) {
    refused = !Find(brief).ok();
  }
  EXPECT_TRUE(refused) << "over";
}

TEST_F(ClusterSecurityTest, WhoIsCalledMustBeWhoIsMeant) {
  Serve(Ours(PeerRole::kDecode, "d0"));
  const auto stub = Stub(Ours(PeerRole::kPrefill), PeerRole::kRouter);
  const grpc::Status status = Find(*stub);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(members_.calls, 0);
}

TEST_F(ClusterSecurityTest, WithATokenAloneWhoeverHasItIsIn) {
  token_ = WriteToken("token", "first\nsecond\n");
  Serve(Load({"", "", "", token_}, {PeerRole::kRouter, ""}));
  const auto with = [&](const std::string& token) {
    return Load({"", "", "", WriteToken("shown", token)}, {PeerRole::kPrefill, ""});
  };
  EXPECT_TRUE(Find(with("first")).ok());
  EXPECT_FALSE(members_.shows_token) << "services need not see it";
  EXPECT_TRUE(Find(with("second")).ok());
  EXPECT_EQ(Find(with("third")).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status none = Find(nullptr);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(none.error_message(), HasSubstr("--cluster-token-file"));
  EXPECT_EQ(members_.calls, 2);
}

TEST_F(ClusterSecurityTest, ACertificateDoesNotStandInForTheToken) {
  token_ = WriteToken("token", "first\n");
  Serve(Ours(PeerRole::kRouter));
  EXPECT_TRUE(Find(Ours(PeerRole::kPrefill)).ok());
  token_.clear();
  EXPECT_EQ(Find(Ours(PeerRole::kPrefill)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ClusterSecurityTest, NewCertificatesAreTakenWithoutARestart) {
  Serve(Ours(PeerRole::kRouter));
  const Security prefill = Ours(PeerRole::kPrefill);
  const auto old = Stub(prefill);
  ASSERT_TRUE(Find(*old).ok());
  // Another authority takes over: of both ends, one after the other.
  const std::string both = directory_ + "/both.crt";
  {
    std::ofstream out(both);
    out << std::ifstream(ours_->certificate()).rdbuf()
        << std::ifstream(theirs_->certificate()).rdbuf();
  }
  std::filesystem::copy_file(both, ours_->certificate() + ".new");
  std::filesystem::rename(ours_->certificate() + ".new", ours_->certificate());
  const Security fresh = Load({theirs_->Issue("p", {"baton://prefill"}).certificate,
                               directory_ + "/theirs/p.key", both, ""},
                              {PeerRole::kPrefill, ""});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  grpc::Status status = Find(fresh);
  while (!status.ok() && std::chrono::steady_clock::now() < until) status = Find(fresh);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Find(*old).ok()) << "connections keep what they began with";
}

TEST_F(ClusterSecurityTest, FilesThatCannotServeAreRefusedByOption) {
  const auto own = ours_->Issue("d", {"baton://decode/d0"});
  const auto refused = [&](const ClusterSecurityFiles& files, const PeerIdentity& self) {
    const auto loaded = ClusterSecurity::Load(files, self);
    EXPECT_FALSE(loaded.ok());
    return std::string(loaded.status().message());
  };
  const std::string ca = ours_->certificate();
  const PeerIdentity d0{PeerRole::kDecode, "d0"};
  EXPECT_THAT(refused({own.certificate, own.key, ca, ""}, {PeerRole::kDecode, "d1"}),
              HasSubstr("expected URI:baton://decode or URI:baton://decode/d1"));
  EXPECT_THAT(refused({own.certificate, own.key, ca, ""}, {PeerRole::kPrefill, "d0"}),
              HasSubstr("cluster_tls_cert: "));
  const auto other = ours_->Issue("e", {"baton://decode"});
  EXPECT_THAT(refused({own.certificate, other.key, ca, ""}, d0), HasSubstr("cluster_tls_cert: "));
  EXPECT_THAT(refused({own.certificate, own.key, own.key, ""}, d0), HasSubstr("cluster_tls_ca: "));
  const auto over = ours_->Issue("f", {"baton://decode"}, -60);
  EXPECT_THAT(refused({over.certificate, over.key, ca, ""}, d0), HasSubstr("time is over"));
  EXPECT_THAT(refused({"", "", "", "/no/such"}, d0), HasSubstr("cluster_token_file: /no/such"));
  EXPECT_EQ(*ClusterSecurity::Load({}, d0), nullptr);
}

}  // namespace
}  // namespace baton::rpc
