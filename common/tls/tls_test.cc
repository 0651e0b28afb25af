// Certificates and sessions against OpenSSL's own client, over bytes.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/tls/testing/test_certificate.h"
#include "common/tls/tls_certificate.h"
#include "common/tls/tls_session.h"

namespace baton {
namespace {

// A client without verification, joined to a session by hand.
class Client {
 public:
  Client()
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free),
        ssl_(SSL_new(context_.get()), SSL_free),
        in_(BIO_new(BIO_s_mem())),
        out_(BIO_new(BIO_s_mem())) {
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_connect_state(ssl_.get());
  }

  SSL* ssl() { return ssl_.get(); }

  // Moves bytes both ways until nothing moves.
  absl::Status Exchange(TlsSession& session) {
    for (int round = 0; round < 10; ++round) {
      char block[4096];
      int count = 0;
      while ((count = SSL_read(ssl_.get(), block, sizeof(block))) > 0) {
        heard_.append(block, static_cast<size_t>(count));
      }
      std::string sent(BIO_pending(out_), '\0');
      if (!sent.empty()) BIO_read(out_, sent.data(), static_cast<int>(sent.size()));
      if (absl::Status status = session.Receive(sent, told_); !status.ok()) return status;
      const std::string answer = session.TakeOutput();
      if (!answer.empty()) BIO_write(in_, answer.data(), static_cast<int>(answer.size()));
      if (sent.empty() && answer.empty()) break;
    }
    return absl::OkStatus();
  }

  void Say(const std::string& text) {
    EXPECT_EQ(SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())),
              static_cast<int>(text.size()));
  }
  void Leave() { SSL_shutdown(ssl_.get()); }

  const std::string& heard() const { return heard_; }
  const std::string& told() const { return told_; }

  std::string ServerName() {
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(
        SSL_get1_peer_certificate(ssl_.get()), X509_free);
    char name[64] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name,
                              sizeof(name));
    return name;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  BIO* in_;
  BIO* out_;
  std::string heard_;
  std::string told_;
};

class TlsTest : public testing::Test {
 protected:
  void Write(const TestCertificate& certificate) {
    // As Kubernetes does: new files, then one rename each.
    Replace(certificate_path_, certificate.certificate_pem);
    Replace(key_path_, certificate.key_pem);
  }
  void Replace(const std::string& path, const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  }
  std::string Refusal() {
    return std::string(TlsCertificate::Load(certificate_path_, key_path_).status().message());
  }

  const std::string directory_ = testing::TempDir();
  const std::string certificate_path_ = directory_ + "/tls.crt";
  const std::string key_path_ = directory_ + "/tls.key";
};

TEST_F(TlsTest, CarriesBytesBothWaysAndSaysWhenItEnds) {
  Write(MakeTestCertificate("first"));
  const auto certificate = TlsCertificate::Load(certificate_path_, key_path_);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  TlsSession session((*certificate)->Context(0));
  Client client;
  EXPECT_FALSE(session.established());
  ASSERT_TRUE(client.Exchange(session).ok());
  EXPECT_TRUE(session.established());
  EXPECT_EQ(client.ServerName(), "first");

  const std::string large(300'000, 'x');
  client.Say("hello");
  session.Send(large);
  ASSERT_TRUE(client.Exchange(session).ok());
  EXPECT_EQ(client.told(), "hello");
  EXPECT_EQ(client.heard(), large);

  session.Close();
  ASSERT_TRUE(client.Exchange(session).ok());
  EXPECT_TRUE((SSL_get_shutdown(client.ssl()) & SSL_RECEIVED_SHUTDOWN) != 0);
  EXPECT_FALSE(session.peer_closed());
  client.Leave();
  ASSERT_TRUE(client.Exchange(session).ok());
  EXPECT_TRUE(session.peer_closed());
}

TEST_F(TlsTest, RefusesWhatIsNoTls) {
  Write(MakeTestCertificate("first"));
  const auto certificate = TlsCertificate::Load(certificate_path_, key_path_);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  std::string plain;
  TlsSession http((*certificate)->Context(0));
  EXPECT_FALSE(http.Receive("GET / HTTP/1.1\r\nHost: x\r\n\r\n", plain).ok());
  EXPECT_TRUE(http.spoke_plain_http());
  TlsSession garbage((*certificate)->Context(0));
  EXPECT_FALSE(garbage.Receive(std::string(100, '\xff'), plain).ok());
  EXPECT_FALSE(garbage.spoke_plain_http());
  EXPECT_EQ(plain, "");
}

TEST_F(TlsTest, RefusesOldProtocols) {
  Write(MakeTestCertificate("first"));
  const auto certificate = TlsCertificate::Load(certificate_path_, key_path_);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  TlsSession session((*certificate)->Context(0));
  Client client;
  SSL_set_max_proto_version(client.ssl(), TLS1_1_VERSION);
  (void)client.Exchange(session);
  EXPECT_FALSE(session.established());
}

TEST_F(TlsTest, ReadsChangedFilesAndKeepsTheLastGoodOnes) {
  Write(MakeTestCertificate("first"));
  const auto certificate = TlsCertificate::Load(certificate_path_, key_path_);
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  const auto served = [&](int64_t now_us) {
    TlsSession session((*certificate)->Context(now_us));
    Client client;
    EXPECT_TRUE(client.Exchange(session).ok());
    return client.ServerName();
  };
  EXPECT_EQ(served(0), "first");
  Write(MakeTestCertificate("second"));
  EXPECT_EQ(served(999'999), "first");  // Not looked at again so soon.
  EXPECT_EQ(served(1'000'000), "second");
  Replace(key_path_, "no key");
  EXPECT_EQ(served(2'000'000), "second");
  std::filesystem::remove(certificate_path_);
  EXPECT_EQ(served(3'000'000), "second");
  Write(MakeTestCertificate("third"));
  EXPECT_EQ(served(4'000'000), "third");
}

TEST_F(TlsTest, NamesTheFileThatIsWrong) {
  const TestCertificate first = MakeTestCertificate("first");
  const TestCertificate second = MakeTestCertificate("second");
  Write({"", first.key_pem});
  EXPECT_NE(Refusal().find("tls.crt: not a certificate in PEM"), std::string::npos) << Refusal();
  Write({first.certificate_pem, "-----BEGIN PRIVATE KEY-----\nbad\n"});
  EXPECT_NE(Refusal().find("tls.key: not a private key"), std::string::npos) << Refusal();
  Write({first.certificate_pem, second.key_pem});
  EXPECT_NE(Refusal().find("tls.key: "), std::string::npos) << Refusal();
  EXPECT_NE(Refusal().find("tls.crt"), std::string::npos) << Refusal();
  std::filesystem::remove(key_path_);
  EXPECT_NE(Refusal().find("tls.key"), std::string::npos) << Refusal();
}

}  // namespace
}  // namespace baton
