// Closes orders that are not paid in time: `go run ./examples/ordertimeout` with a service on the default address.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"timerwheel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	url := os.Getenv("TIMERWHEEL_URL")
	if url == "" {
		url = "http://127.0.0.1:8686"
	}
	service, err := timerwheel.New(url)
	if err != nil {
		log.Fatal(err)
	}

	type order struct {
		Number int `json:"number"`
	}
	paid, unpaid := order{17}, order{18}
	first, err := service.Send(ctx, timerwheel.JSON("orders", paid).In(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := service.Send(ctx, timerwheel.JSON("orders", unpaid).In(time.Second)); err != nil {
		log.Fatal(err)
	}
	if _, err := service.Recall(ctx, first.Id); err != nil { // order 17 is paid
		log.Fatal(err)
	}

	working, done := context.WithCancel(ctx)
	err = service.Group("orders", "closers").Consume(working, 4, func(_ context.Context, message timerwheel.Held) error {
		var late order
		if err := message.Decode(&late); err != nil {
			return err
		}
		fmt.Println("closed order", late.Number)
		done()
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
