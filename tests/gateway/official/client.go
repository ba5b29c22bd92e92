// RocketMQ's official client for Go, driven by lines of words between tabs: commands on standard input, an answer to
// each on standard output, "ok" and what was asked for, or "error" and why.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const messageNotFound = 40401

var producers = map[string]rocketmq.Producer{}
var consumers = map[string]rocketmq.SimpleConsumer{}

func main() {
	out := bufio.NewWriter(os.Stdout)
	os.Stdout = os.Stderr // The client may say something, too.
	rocketmq.ResetLogger()
	rocketmq.EnableSsl = os.Args[1] == "tls"
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		answer, err := obey(strings.Split(in.Text(), "\t"))
		if err != nil {
			fmt.Fprintf(out, "error\t%s\n", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Fprintln(out, strings.Join(append([]string{"ok"}, answer...), "\t"))
		}
		out.Flush()
	}
}

func config(endpoints string, group string) *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      endpoints,
		ConsumerGroup: group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func obey(words []string) ([]string, error) {
	background := context.Background()
	switch words[0] {
	case "producer":
		options := []rocketmq.ProducerOption{rocketmq.WithTopics(strings.Split(words[3], ",")...)}
		if words[4] != "" {
			verdict := map[string]rocketmq.TransactionResolution{
				"COMMIT": rocketmq.COMMIT, "ROLLBACK": rocketmq.ROLLBACK, "UNKNOWN": rocketmq.UNKNOWN,
			}[words[4]]
			check := func(*rocketmq.MessageView) rocketmq.TransactionResolution { return verdict }
			options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
		}
		producer, err := rocketmq.NewProducer(config(words[2], ""), options...)
		if err == nil {
			err = producer.Start()
		}
		producers[words[1]] = producer
		return nil, err
	case "consumer":
		consumer, err := rocketmq.NewSimpleConsumer(config(words[2], words[3]),
			rocketmq.WithSimpleAwaitDuration(2*time.Second),
			rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{words[4]: rocketmq.SUB_ALL}))
		if err == nil {
			err = consumer.Start()
		}
		consumers[words[1]] = consumer
		return nil, err
	case "send":
		message := &rocketmq.Message{Topic: words[2], Body: []byte(words[3])}
		if words[4] != "" {
			message.SetMessageGroup(words[4])
		}
		receipts, err := producers[words[1]].Send(background, message)
		if err != nil {
			return nil, err
		}
		return []string{receipts[0].MessageID}, nil
	case "transact":
		transaction := producers[words[1]].BeginTransaction()
		message := &rocketmq.Message{Topic: words[2], Body: []byte(words[3])}
		receipts, err := producers[words[1]].SendWithTransaction(background, message, transaction)
		if err == nil && words[4] == "COMMIT" {
			err = transaction.Commit()
		} else if err == nil && words[4] == "ROLLBACK" {
			err = transaction.RollBack()
		}
		if err != nil {
			return nil, err
		}
		return []string{receipts[0].MessageID}, nil
	case "receive":
		count, err := strconv.Atoi(words[2])
		if err != nil {
			return nil, err
		}
		views, err := consumers[words[1]].Receive(background, int32(count), 20*time.Second)
		if err != nil {
			var status *rocketmq.ErrRpcStatus
			if errors.As(err, &status) && status.Code == messageNotFound {
				return nil, nil
			}
			return nil, err
		}
		var bodies []string
		for _, view := range views {
			bodies = append(bodies, string(view.GetBody()))
			if err := consumers[words[1]].Ack(background, view); err != nil {
				return nil, err
			}
		}
		return bodies, nil
	}
	return nil, errors.New("there is no command " + words[0])
}
