// Command franz is franz-go as a program for the end-to-end tests: what it does is said by one argument, in JSON
// (tests/e2e/clients/programs.py says which). A member of a group prints "partition offset" of each record, and
// leaves when its standard input ends.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type job struct {
	Role, Bootstrap, Protocol, Mechanism, User, Password, CA, Topic, Group string

	ClientID   string `json:"client_id"`
	FetchBytes int32  `json:"fetch_bytes"`
	Partitions int32
	Count      int
	Size       int
}

func main() {
	var wanted job
	must(json.Unmarshal([]byte(os.Args[1]), &wanted))
	switch wanted.Role {
	case "create":
		create(wanted)
	case "produce":
		produce(wanted)
	case "consume":
		consume(wanted)
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(wanted job, more ...kgo.Opt) *kgo.Client {
	options := append(more, kgo.SeedBrokers(wanted.Bootstrap), kgo.ClientID(wanted.ClientID))
	if wanted.CA != "" {
		pem, err := os.ReadFile(wanted.CA)
		must(err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}))
	}
	switch wanted.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: wanted.User, Pass: wanted.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scram.Auth{User: wanted.User, Pass: wanted.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: wanted.User, Pass: wanted.Password}.AsSha512Mechanism()))
	}
	made, err := kgo.NewClient(options...)
	must(err)
	return made
}

func create(wanted job) {
	made := client(wanted)
	defer made.Close()
	answer, err := kadm.NewClient(made).CreateTopic(context.Background(), wanted.Partitions, 1, nil, wanted.Topic)
	must(err)
	must(answer.Err)
}

// produce sends one record after another, each when the one before it was acknowledged.
func produce(wanted job) {
	made := client(wanted, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer made.Close()
	for number := range wanted.Count {
		record := &kgo.Record{Topic: wanted.Topic, Partition: int32(number) % wanted.Partitions, Value: make([]byte, wanted.Size)}
		must(made.ProduceSync(context.Background(), record).FirstErr())
	}
}

func consume(wanted job) {
	made := client(wanted,
		kgo.ConsumerGroup(wanted.Group), kgo.ConsumeTopics(wanted.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitMarks(),
		kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxPartitionBytes(wanted.FetchBytes), kgo.FetchMaxBytes(wanted.FetchBytes))
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		leave()
	}()
	out := bufio.NewWriter(os.Stdout)
	for {
		fetches := made.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		for _, failed := range fetches.Errors() {
			must(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			made.MarkCommitRecords(record)
			fmt.Fprintln(out, record.Partition, record.Offset)
		})
		must(out.Flush())
	}
	must(made.CommitMarkedOffsets(context.Background()))
	made.Close()
}
