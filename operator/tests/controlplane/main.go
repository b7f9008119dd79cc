// Command controlplane is the part of Kubernetes that the operator's tests need, as one static binary:
//
//	controlplane etcd|kube-apiserver|kube-controller-manager|kubectl ARGUMENTS...
//
// There is no scheduler and no kubelet: pods stay Pending until a test writes their status.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// Programs take their arguments from os.Args, the program's name first.
var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllermanager.NewControllerManagerCommand),
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
}

func main() {
	os.Args = os.Args[1:]
	if len(os.Args) > 0 {
		if program, known := programs[os.Args[0]]; known {
			program()
			return
		}
	}
	var names []string
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: controlplane %s ARGUMENTS...\n", strings.Join(names, "|"))
	os.Exit(2)
}

func command(make func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(make())) }
}
