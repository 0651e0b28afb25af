// Continues a prompt through Baton's gRPC service and prints the text as it comes:
//
//	go run . -target 127.0.0.1:30001 "It was a truth"
//
// make_stubs.sh writes package batonv1 from proto/ first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"baton.example/client/batonv1"
)

type options struct {
	target, apiKey, prompt string
	maxTokens              int
	temperature            float64
	seed                   uint64
}

func parse() options {
	var o options
	flag.StringVar(&o.target, "target", "127.0.0.1:30001", "the router's gRPC address")
	flag.StringVar(&o.apiKey, "api-key", os.Getenv("BATON_API_KEY"), "default: $BATON_API_KEY")
	flag.IntVar(&o.maxTokens, "max-tokens", 64, "")
	flag.Float64Var(&o.temperature, "temperature", 0.8, "")
	flag.Uint64Var(&o.seed, "seed", 0, "the same seed gives the same text; 0: the server draws one")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: client [flags] PROMPT")
		os.Exit(2)
	}
	o.prompt = flag.Arg(0)
	return o
}

func (o options) request() *batonv1.GenerateRequest {
	temperature, topP, maxTokens := float32(o.temperature), float32(0.95), int32(o.maxTokens)
	sampling := &batonv1.SamplingParams{Temperature: &temperature, TopP: &topP, MaxTokens: &maxTokens}
	if o.seed != 0 {
		sampling.Seed = &o.seed
	}
	return &batonv1.GenerateRequest{
		Prompt:   &batonv1.GenerateRequest_Text{Text: o.prompt},
		Sampling: sampling,
	}
}

// generate prints the continuation. The end of ctx aborts the request on every leg.
func generate(ctx context.Context, o options) (*batonv1.Finished, error) {
	connection, err := grpc.NewClient(o.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if o.apiKey != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+o.apiKey)
	}
	stream, err := batonv1.NewInferenceClient(connection).Generate(ctx, o.request())
	if err != nil {
		return nil, err
	}
	var finished *batonv1.Finished
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return finished, nil
		}
		if err != nil {
			return nil, err
		}
		switch event := response.Event.(type) {
		case *batonv1.GenerateResponse_Tokens:
			fmt.Print(event.Tokens.Text)
		case *batonv1.GenerateResponse_Finished:
			finished = event.Finished
			fmt.Print(finished.Text)
		}
	}
}

// explain is a failure in a line: code, message, and what Baton attaches to the status.
func explain(err error) string {
	failed := status.Convert(err)
	text := fmt.Sprintf("%v: %s", failed.Code(), failed.Message())
	for _, detail := range failed.Details() {
		if more, ok := detail.(*batonv1.ErrorDetail); ok && more.Field != "" {
			text += fmt.Sprintf(" (field %s)", more.Field)
		}
	}
	return text
}

func main() {
	o := parse()
	interruptible, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(interruptible, 10*time.Minute)
	defer cancel()
	finished, err := generate(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, explain(err))
		os.Exit(1)
	}
	usage, timing := finished.GetUsage(), finished.GetTiming()
	fmt.Printf("\n[%d + %d tokens, first after %.1f ms]\n", usage.GetPromptTokens(), usage.GetCompletionTokens(),
		float64(timing.GetTtftUs())/1000)
}
