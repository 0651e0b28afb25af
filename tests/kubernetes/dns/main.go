// Command dns is CoreDNS with the plugins that answer a cluster's own names and no others. It has a module
// of its own: CoreDNS and Kubernetes want different versions of gRPC and of each other's libraries.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// CoreDNS sets up only plugins that this list names, in its order.
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes"}
	coremain.Run()
}
