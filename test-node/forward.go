package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// forward carries TCP connections from one address to another, each in its own network namespace:
//
//	node forward 127.0.0.1:6443 /run/netns/NAME@127.0.0.1:6443
//
// An address without "NAMESPACE@" is in the namespace of the caller.
func forward(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: node forward [NAMESPACE@]LISTEN_ADDRESS [NAMESPACE@]TARGET_ADDRESS")
	}
	listenAt, target := parseEndpoint(args[0]), parseEndpoint(args[1])
	var listener net.Listener
	err := listenAt.within(func() (err error) {
		listener, err = net.Listen("tcp", listenAt.address)
		return err
	})
	if err != nil {
		return err
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go carry(client.(*net.TCPConn), target)
	}
}

func carry(client *net.TCPConn, target endpoint) {
	defer client.Close()
	var server net.Conn
	err := target.within(func() (err error) {
		server, err = net.Dial("tcp", target.address)
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer server.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from *net.TCPConn) {
		io.Copy(to, from)
		to.CloseWrite() // hand on the end of one direction; the other may still be in use (kubectl exec)
		done <- struct{}{}
	}
	go pipe(server.(*net.TCPConn), client)
	go pipe(client, server.(*net.TCPConn))
	<-done
	<-done
}

// endpoint is an address in the network namespace bound to a file, or in our own when that is empty.
type endpoint struct{ namespace, address string }

func parseEndpoint(text string) endpoint {
	if namespace, address, found := strings.Cut(text, "@"); found {
		return endpoint{namespace, address}
	}
	return endpoint{"", text}
}

// within runs f on a thread that has joined the namespace. A socket stays in the namespace it was made in.
func (e endpoint) within(f func() error) error {
	if e.namespace == "" {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Go ends the changed thread together with this goroutine
		result <- func() error {
			file, err := os.Open(e.namespace)
			if err != nil {
				return err
			}
			defer file.Close()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("join %s: %w", e.namespace, err)
			}
			return f()
		}()
	}()
	return <-result
}
