// A device plugin of the kubelet that offers GPUs which are none: each is a device file like /dev/null. As NVIDIA's plugin
// does, it gives a container the files of the GPUs that it was assigned, under the numbers that they have on the node.
//
//	gpus COUNT    runs until its socket is gone, which the kubelet removes when it starts
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	name     = "imitated-gpus"
)

type plugin struct {
	kubelet.UnimplementedDevicePluginServer
	devices []*kubelet.Device
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: gpus COUNT")
	}
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	devices, err := makeDevices(count)
	if err != nil {
		return err
	}
	socket := filepath.Join(kubelet.DevicePluginPath, name+".sock")
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	kubelet.RegisterDevicePluginServer(server, &plugin{devices: devices})
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	if err := register(); err != nil {
		return err
	}
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Second):
			if _, err := os.Stat(socket); err != nil {
				return fmt.Errorf("the kubelet has started anew: %w", err)
			}
		}
	}
}

// The device files, which the kubelet must see under the same path as this container.
func makeDevices(count int) ([]*kubelet.Device, error) {
	if err := os.MkdirAll(filepath.Dir(path("")), 0o755); err != nil {
		return nil, err
	}
	var devices []*kubelet.Device
	for number := range count {
		id := strconv.Itoa(number)
		if err := unix.Mknod(path(id), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil && err != unix.EEXIST {
			return nil, fmt.Errorf("mknod %s: %w", path(id), err)
		}
		devices = append(devices, &kubelet.Device{ID: id, Health: kubelet.Healthy})
	}
	return devices, nil
}

func path(id string) string {
	return filepath.Join(kubelet.DevicePluginPath, name, "nvidia"+id)
}

func register() error {
	connection, err := grpc.NewClient("unix://"+kubelet.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = kubelet.NewRegistrationClient(connection).Register(ctx, &kubelet.RegisterRequest{
		Version: kubelet.Version, Endpoint: name + ".sock", ResourceName: resource,
	})
	return err
}

func (*plugin) GetDevicePluginOptions(context.Context, *kubelet.Empty) (*kubelet.DevicePluginOptions, error) {
	return &kubelet.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *kubelet.Empty, stream grpc.ServerStreamingServer[kubelet.ListAndWatchResponse]) error {
	if err := stream.Send(&kubelet.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (*plugin) Allocate(_ context.Context, request *kubelet.AllocateRequest) (*kubelet.AllocateResponse, error) {
	response := &kubelet.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer := &kubelet.ContainerAllocateResponse{}
		for _, id := range container.DevicesIds {
			answer.Devices = append(answer.Devices, &kubelet.DeviceSpec{
				ContainerPath: "/dev/nvidia" + id, HostPath: path(id), Permissions: "rw",
			})
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}
