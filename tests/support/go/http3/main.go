// HTTP/3 server and client on quic-go, an independent end for tests.
//
//	http3 serve PORT KEY CERT [-early] [-retry]   /small, /large, /echo, /headers, /trailers, /slow, /early-hints
//	http3 get [-ca FILE] [-n COUNT] [-c CONCURRENT] [-body SIZE] [-early] URL   one line of JSON for each response
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const alpha = 256

func main() {
	if len(os.Args) < 2 {
		log.Fatal("serve or get")
	}
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2:])
	case "get":
		get(os.Args[2:])
	default:
		log.Fatalf("unknown command %q", os.Args[1])
	}
}

// Three megabytes, as tests/support/interop_app.py has them.
func large() []byte {
	unit := make([]byte, alpha)
	for i := range unit {
		unit[i] = byte(i)
	}
	return bytes.Repeat(unit, 12_000)
}

func handler() http.Handler {
	small, big := []byte("hello"), large()
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, body []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Header().Set("X-Version", "3")
		w.Write(body)
	}
	mux.HandleFunc("/small", func(w http.ResponseWriter, r *http.Request) { send(w, small) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { send(w, big) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		send(w, body)
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			for _, value := range values {
				fmt.Fprintf(w, "%s: %s\n", name, value)
			}
		}
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-After")
		w.Write(small)
		w.Header().Set("X-After", "yes")
	})
	mux.HandleFunc("/early-hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		send(w, small)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(200 * time.Millisecond)
		send(w, small)
	})
	return mux
}

func serve(args []string) {
	set := flag.NewFlagSet("serve", flag.ExitOnError)
	early := set.Bool("early", false, "accept 0-RTT")
	retry := set.Bool("retry", false, "validate addresses with Retry")
	set.Parse(args[3:])
	cert, err := tls.LoadX509KeyPair(args[2], args[1])
	if err != nil {
		log.Fatal(err)
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		log.Fatal(err)
	}
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		log.Fatal(err)
	}
	transport := &quic.Transport{Conn: socket}
	if *retry {
		transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	listener, err := transport.ListenEarly(
		http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}}),
		&quic.Config{Allow0RTT: *early},
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on %d\n", socket.LocalAddr().(*net.UDPAddr).Port)
	server := &http3.Server{Handler: handler()}
	log.Fatal(server.ServeListener(listener))
}

type result struct {
	Status   int               `json:"status"`
	Proto    string            `json:"proto"`
	Length   int               `json:"length"`
	Sha256   string            `json:"sha256"`
	Headers  map[string]string `json:"headers"`
	Trailers map[string]string `json:"trailers"`
	Error    string            `json:"error,omitempty"`
}

func get(args []string) {
	set := flag.NewFlagSet("get", flag.ExitOnError)
	ca := set.String("ca", "", "file of the trusted authority; any certificate without it")
	count := set.Int("n", 1, "requests")
	concurrent := set.Int("c", 1, "requests at the same time")
	size := set.Int("body", 0, "bytes of a POST")
	early := set.Bool("early", false, "connects twice; the second requests in 0-RTT")
	set.Parse(args)
	config := &tls.Config{InsecureSkipVerify: *ca == "", ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			log.Fatal(err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(pem)
	}
	method := http.MethodGet
	if *early {
		first := &http3.Transport{TLSClientConfig: config}
		exchange(first, set.Arg(0), method, 0)
		time.Sleep(100 * time.Millisecond)
		first.Close()
		method = http3.MethodGet0RTT
	}
	transport := &http3.Transport{TLSClientConfig: config}
	defer transport.Close()
	if *size > 0 {
		method = http.MethodPost
	}
	jobs, lock, group := make(chan int), new(sync.Mutex), new(sync.WaitGroup)
	for range *concurrent {
		group.Add(1)
		go func() {
			defer group.Done()
			for range jobs {
				line, _ := json.Marshal(exchange(transport, set.Arg(0), method, *size))
				lock.Lock()
				fmt.Println(string(line))
				lock.Unlock()
			}
		}()
	}
	for i := range *count {
		jobs <- i
	}
	close(jobs)
	group.Wait()
}

func exchange(transport *http3.Transport, url, method string, size int) result {
	var body io.Reader
	if size > 0 {
		body = bytes.NewReader(bytes.Repeat([]byte("x"), size))
	}
	within, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(within, method, url, body)
	if err != nil {
		return result{Error: err.Error()}
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return result{Error: err.Error()}
	}
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	found := result{
		Status:   response.StatusCode,
		Proto:    response.Proto,
		Length:   len(received),
		Sha256:   fmt.Sprintf("%x", sha256.Sum256(received)),
		Headers:  flat(response.Header),
		Trailers: flat(response.Trailer),
	}
	if err != nil {
		found.Error = err.Error()
	}
	return found
}

func flat(header http.Header) map[string]string {
	found := map[string]string{}
	for name := range header {
		found[name] = header.Get(name)
	}
	return found
}
