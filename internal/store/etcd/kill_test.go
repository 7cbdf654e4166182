package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/etcd"
)

const killWriters = 16

// writeForever is the child that dies: each writer makes a new key and moves its own and the common number
// in one Update, and reports it once it is acknowledged.
func writeForever() error {
	ctx := context.Background()
	db, err := etcd.Open(ctx, etcd.Eager(etcd.Config{Dir: os.Getenv("DIR")}))
	if err != nil {
		return err
	}
	errs := make(chan error, killWriters)
	for w := range killWriters {
		go func() { errs <- writer(ctx, db, w) }()
	}
	return <-errs
}

func writer(ctx context.Context, db store.DB, w int) error {
	for {
		var n int
		_, err := db.Update(ctx, func(tx store.Tx) error {
			n = number(tx, fmt.Sprintf("/n/%02d", w)) + 1
			tx.Put(entry(fmt.Sprintf("/n/%02d", w), strconv.Itoa(n)))
			tx.Put(entry(fmt.Sprintf("/k/%02d/%08d", w, n), strings.Repeat("x", 300)))
			tx.Put(entry("/sum", strconv.Itoa(number(tx, "/sum")+1)))
			return nil
		})
		if err != nil {
			return err
		}
		if _, err := fmt.Printf("%d %d\n", w, n); err != nil {
			return err
		}
	}
}

func number(tx store.Tx, key string) int {
	e := tx.Get(key)
	if e == nil {
		return 0
	}
	n, err := strconv.Atoi(string(e.Value))
	if err != nil {
		return -1
	}
	return n
}

// TestKillLosesNothing kills a server at a random moment while 16 clients write: after the restart every
// acknowledged write is there, and no Update is there by half.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	acked := make([]int, killWriters)
	for round := range 4 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			out, cmd := child(t, "writer", "DIR="+dir)
			total := readAcks(t, out, acked, 1+rand.IntN(2500), func() { check(t, cmd.Process.Kill()) })
			_ = cmd.Wait()
			db := openAt(t, etcd.Config{Dir: dir})
			check(t, db.View(t.Context(), func(tx store.Tx) error { return allThere(tx, acked) }))
			t.Logf("killed after %d acknowledged writes", total)
		})
	}
}

// readAcks notes acknowledgements, kills after a number of them and goes on to the end of the pipe, because
// what stands in it was acknowledged too.
func readAcks(t *testing.T, out *bufio.Reader, acked []int, until int, kill func()) int {
	t.Helper()
	for total := 0; ; total++ {
		if total == until {
			kill()
		}
		line, err := out.ReadString('\n')
		if err == io.EOF {
			if total < until {
				t.Fatalf("the writer ended by itself after %d writes", total)
			}
			return total
		}
		check(t, err)
		var w, n int
		if _, err := fmt.Sscan(line, &w, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		acked[w] = n
	}
}

func allThere(tx store.Tx, acked []int) error {
	sum := 0
	for w, n := range acked {
		has := number(tx, fmt.Sprintf("/n/%02d", w))
		if has < n {
			return fmt.Errorf("writer %d: write %d was acknowledged, the last one here is %d", w, n, has)
		}
		keys := 0
		for range tx.Scan(fmt.Sprintf("/k/%02d/", w), "") {
			keys++
		}
		if keys != has {
			return fmt.Errorf("writer %d: %d keys for %d writes: some Update is here by half", w, keys, has)
		}
		sum += has
	}
	if got := number(tx, "/sum"); got != sum {
		return fmt.Errorf("the common number is %d after %d writes", got, sum)
	}
	return nil
}
