// Command node is every program of a one-node Kubernetes cluster in one binary.
// The program is chosen by the first argument (`node kubelet ...`) or by the name of a link to it (`kubectl -> node`).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/cmd"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	program := filepath.Base(os.Args[0])
	if program == "node" && len(os.Args) > 1 {
		program = os.Args[1]
		os.Args = os.Args[1:]
	}
	switch program {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		run(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		run(scheduler.NewSchedulerCommand())
	case "kubelet":
		run(kubeletCommand(kubelet.NewKubeletCommand))
	case "kube-proxy":
		run(proxy.NewProxyCommand())
	case "kubeadm": // only to make the certificates and kubeconfig files
		run(kubeadm.NewKubeadmCommand(os.Stdin, os.Stdout, os.Stderr))
	case "kubectl":
		run(kubectl.NewDefaultKubectlCommand())
	case "coredns":
		coremain.Run()
	case "forward":
		exitOn(forward(os.Args[1:]))
	default:
		fmt.Fprintln(os.Stderr, "usage: node etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubeadm|kubectl|coredns|forward ...")
		os.Exit(2)
	}
}

// kubeletCommand calls what makes the kubelet's command, which takes a context in newer versions of Kubernetes.
func kubeletCommand(make any) *cobra.Command {
	if make, ok := make.(func() *cobra.Command); ok {
		return make()
	}
	return make.(func(context.Context) *cobra.Command)(context.Background())
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
