// Command probe is a client inside the cluster, in an image that holds nothing else:
//
//	probe                  waits to be told to end
//	probe dial HOST:PORT   exits 0 if a TCP connection can be made, 1 if not
//	probe get URL          prints the body; exits 0 on status 200
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const patience = 4 * time.Second

func main() {
	if len(os.Args) == 1 {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		<-signals
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("usage: probe [dial HOST:PORT | get URL]")
	}
	switch arguments[0] {
	case "dial":
		connection, err := net.DialTimeout("tcp", arguments[1], patience)
		if err != nil {
			return err
		}
		return connection.Close()
	case "get":
		client := http.Client{Timeout: patience}
		answer, err := client.Get(arguments[1])
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if _, err = io.Copy(os.Stdout, answer.Body); err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", answer.Status)
		}
		return nil
	}
	return fmt.Errorf("no command %q", arguments[0])
}
